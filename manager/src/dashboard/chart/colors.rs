//! Checks the colors of series by numbers: their contrast with the surface, and that no two look alike, also to viewers who
//! do not see red and green apart.

use std::collections::BTreeMap;

use super::Role;

const CSS: &str = include_str!("../assets/app.css");
const ROLES: [Role; 7] = [
    Role::Sent,
    Role::Acked,
    Role::Retried,
    Role::Garbage,
    Role::Typical,
    Role::Slow,
    Role::Oldest,
];
/// The contrast that graphics need (WCAG 2.2, 1.4.11).
const CONTRAST: f64 = 3.0;
/// The least distance of two colors in CIELAB. One of 2.3 is just noticeable.
const DISTANCE: f64 = 12.0;

/// Linear red, green and blue.
type Color = [f64; 3];
/// The part of each of the three that is seen (Machado, Oliveira and Fernandes 2009, severity 1).
type Sight = [[f64; 3]; 3];

const SIGHTS: [(&str, Sight); 3] = [
    (
        "all colors",
        [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]],
    ),
    (
        "deuteranopia",
        [
            [0.367_322, 0.860_646, -0.227_968],
            [0.280_085, 0.672_501, 0.047_413],
            [-0.011_820, 0.042_940, 0.968_881],
        ],
    ),
    (
        "protanopia",
        [
            [0.152_286, 1.052_583, -0.204_868],
            [0.114_503, 0.786_281, 0.099_216],
            [-0.003_882, -0.048_116, 1.051_998],
        ],
    ),
];

/// Returns the colors of the three palettes: light, dark, and dark by the choice of the system.
fn palettes() -> [BTreeMap<&'static str, &'static str>; 3] {
    let blocks = CSS.split("color-scheme: ");
    let blocks = blocks.filter(|block| block.contains("--surface: ")).take(3);
    let colors = |block: &'static str| -> BTreeMap<_, _> {
        let declared = block.split("--").skip(1);
        let pairs = declared.filter_map(|one| one.split(';').next()?.split_once(": #"));
        pairs.collect()
    };
    let blocks: Vec<_> = blocks.map(colors).collect();
    blocks.try_into().expect("three palettes")
}

fn color(hex: &str) -> Color {
    let short = |digit: char| format!("{digit}{digit}");
    let long: String = match hex.len() {
        3 => hex.chars().map(short).collect(),
        _ => hex.to_owned(),
    };
    std::array::from_fn(|part| {
        let byte = u8::from_str_radix(&long[2 * part..2 * part + 2], 16).expect("a color");
        let value = f64::from(byte) / 255.0;
        match value {
            ..=0.040_45 => value / 12.92,
            _ => ((value + 0.055) / 1.055).powf(2.4),
        }
    })
}

fn seen(sight: &Sight, color: Color) -> Color {
    sight.map(|row| {
        let sum: f64 = row
            .iter()
            .zip(color)
            .map(|(weight, part)| weight * part)
            .sum();
        sum.clamp(0.0, 1.0)
    })
}

fn luminance([red, green, blue]: Color) -> f64 {
    0.2126 * red + 0.7152 * green + 0.0722 * blue
}

fn contrast(one: Color, other: Color) -> f64 {
    let (one, other) = (luminance(one), luminance(other));
    (one.max(other) + 0.05) / (one.min(other) + 0.05)
}

fn distance(one: Color, other: Color) -> f64 {
    let lab = |[red, green, blue]: Color| {
        let x = (0.4124 * red + 0.3576 * green + 0.1805 * blue) / 0.950_47;
        let z = (0.0193 * red + 0.1192 * green + 0.9505 * blue) / 1.088_83;
        let [x, y, z] = [x, luminance([red, green, blue]), z].map(|part: f64| match part {
            0.008_856.. => part.cbrt(),
            _ => 7.787 * part + 16.0 / 116.0,
        });
        [116.0 * y - 16.0, 500.0 * (x - y), 200.0 * (y - z)]
    };
    let parts = lab(one).into_iter().zip(lab(other));
    parts
        .map(|(one, other)| (one - other).powi(2))
        .sum::<f64>()
        .sqrt()
}

/// Returns the color of a role.
fn of(palette: &BTreeMap<&str, &str>, role: Role) -> Color {
    let name = role.class().trim_start_matches("is-");
    assert!(
        CSS.contains(&format!(".is-{name} {{ color: var(--{name});")),
        "{name}"
    );
    color(palette[name])
}

#[test]
fn each_series_stands_out_from_the_surface_in_each_theme() {
    let palettes = palettes();
    assert_eq!(palettes[1], palettes[2], "the dark theme is written twice");
    for palette in &palettes {
        let surface = color(palette["surface"]);
        for role in ROLES {
            let contrast = contrast(of(palette, role), surface);
            assert!(contrast >= CONTRAST, "{role:?}: {contrast:.2}");
        }
    }
}

#[test]
fn no_two_series_look_alike_with_or_without_seeing_red_and_green() {
    for palette in &palettes()[..2] {
        for (sight, matrix) in &SIGHTS {
            for (index, one) in ROLES.into_iter().enumerate() {
                for other in &ROLES[index + 1..] {
                    let [a, b] = [one, *other].map(|role| seen(matrix, of(palette, role)));
                    let distance = distance(a, b);
                    assert!(
                        distance >= DISTANCE,
                        "{sight}: {one:?} and {other:?}: {distance:.1}"
                    );
                }
            }
        }
    }
}

#[test]
fn the_measures_are_those_that_are_published() {
    let [black, white, red, green] = ["000", "fff", "f00", "00ff00"].map(color);
    assert!((contrast(black, white) - 21.0).abs() < 0.01);
    assert!((contrast(white, red) - 4.0).abs() < 0.01);
    assert!((distance(black, white) - 100.0).abs() < 0.1);
    assert!(
        (distance(red, green) - 170.6).abs() < 1.0,
        "{}",
        distance(red, green)
    );
}
