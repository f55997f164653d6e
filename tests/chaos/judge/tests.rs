//! A judge that finds nothing must have looked: each promise is broken once.

use super::*;
use crate::journal::parse;
use std::collections::HashMap;

/// Two messages of a key that were sent, accepted and handled as they should be.
const WELL: &str = "\
    100 intend 0 keyed 7 work:0 150\n\
    110 accepted 0 100 151\n\
    110 intend 1 keyed 7 work:0 200\n\
    120 accepted 1 110 201\n\
    152 begin 0 1 151 keyed-1\n\
    153 end 0 1 keyed-1 done\n\
    202 begin 1 1 201 keyed-1\n\
    203 end 1 1 keyed-1 done\n";

fn judged(lines: &str) -> Verdict {
    let mut history = History::default();
    let mut processes = HashMap::new();
    for line in lines.lines() {
        let (at, record) = parse(line).unwrap();
        assert_eq!(format!("{at} {record}"), line, "read as it was written");
        assert!(history.add(at, record, &mut processes), "{line}");
    }
    judge(&history)
}

#[test]
fn a_run_that_went_well_has_no_violation() {
    let verdict = judged(WELL);
    assert!(verdict.violations.is_empty(), "{verdict:?}");
    assert_eq!((verdict.accepted, verdict.done), (2, 2));
}

#[test]
fn of_a_key_the_next_may_begin_in_the_ms_in_which_the_one_before_ended() {
    let run = |ended: u64| {
        format!(
            "100 intend 0 keyed 7 work:0 150\n\
             110 accepted 0 100 151\n\
             110 intend 1 keyed 7 work:0 120\n\
             112 accepted 1 110 121\n\
             152 begin 0 1 151 keyed-1\n\
             152 begin 1 1 121 keyed-2\n\
             {ended} end 1 1 keyed-2 done\n\
             155 end 0 1 keyed-1 done\n"
        )
    };
    assert_eq!(judged(&run(152)).disordered, 0);
    assert_eq!(judged(&run(153)).disordered, 2, "too early, and at once");
}

#[test]
fn what_was_accepted_and_never_done_is_lost() {
    let verdict = judged("100 intend 0 plain - work:0 150\n110 accepted 0 100 151\n");
    assert_eq!((verdict.lost, verdict.violations.len()), (1, 1));
    let cancelled =
        "100 intend 0 plain - work:0 150\n110 accepted 0 100 151\n130 cancelled 0 120 done -\n";
    assert_eq!(judged(cancelled).lost, 0);
    let unknown = "100 intend 0 plain - work:0 150\n110 unknown 0\n";
    assert_eq!(judged(unknown).lost, 0);
}

#[test]
fn what_can_never_succeed_must_be_in_garbage_and_nothing_else_may() {
    let sent = "100 intend 0 plain - fail 150\n110 accepted 0 100 151\n";
    assert_eq!(judged(sent).lost, 1);
    let kept = judged(&format!("{sent}900 garbage 0\n"));
    assert_eq!((kept.lost, kept.garbage, kept.given_up), (0, 1, 0));
    assert_eq!(judged(&format!("{WELL}900 garbage 0\n")).given_up, 1);
}

#[test]
fn what_everything_was_deleted_after_is_forgiven_and_nothing_else() {
    let before = "100 intend 0 plain - work:0 150\n110 accepted 0 100 151\n120 flushed 119\n";
    let verdict = judged(before);
    assert_eq!((verdict.lost, verdict.forgiven), (0, 1));
    let after = "120 flushed 119\n130 intend 0 plain - work:0 150\n140 accepted 0 130 151\n";
    assert_eq!(judged(after).lost, 1);
}

#[test]
fn a_handler_before_the_due_time_is_early() {
    let early = WELL.replace("152 begin", "150 begin");
    assert_eq!(judged(&early).early, 1);
    let told = WELL.replace("begin 0 1 151", "begin 0 1 140");
    assert_eq!(judged(&told.replace("152 begin", "149 begin")).early, 1);
    let receipt = WELL.replace("accepted 0 100 151", "accepted 0 100 149");
    assert_eq!(judged(&receipt).early, 1);
    let moved = format!("{WELL}140 moved 0 130 5000 done 5130\n");
    assert_eq!(judged(&moved).early, 1);
}

#[test]
fn an_attempt_keeps_its_due_time() {
    let misdated = |lines: &str| judged(lines).misdated;
    let told = WELL.replace("begin 0 1 151", "begin 0 1 152");
    assert_eq!(misdated(&told), 1, "another than its receipt");
    let moved = format!("{told}140 moved 0 130 22 done 152\n");
    assert_eq!(misdated(&moved), 0);
    let again = |attempt: u32| format!("{WELL}9000 begin 0 {attempt} 9000 keyed-2\n");
    assert_eq!(misdated(&again(1)), 1);
    assert_eq!(misdated(&again(2)), 0);
    let twice = format!("{}9100 begin 0 2 9001 keyed-1\n", again(2));
    assert_eq!(misdated(&twice), 1);
    let damaged = |span: &str| misdated(&format!("{}{span} delete-stream * away\n", again(1)));
    assert_eq!(damaged("9010 fault 8990"), 0, "repaired at 9000");
    assert_eq!(damaged("8999 fault 8990"), 1, "repaired before");
    let deleted = format!("{}500 flushed 499\n", again(1));
    assert_eq!(
        misdated(&deleted),
        0,
        "sent again after everything was deleted"
    );
}

#[test]
fn a_duplicate_needs_a_reason_in_its_own_process() {
    let again = format!("{WELL}9000 begin 0 2 9000 keyed-2\n9001 end 0 2 keyed-2 done\n");
    let verdict = judged(&again);
    assert_eq!((verdict.duplicates, verdict.unexplained), (1, 1));
    let unexplained = |fault: &str| judged(&format!("{again}{fault}\n")).unexplained;
    assert_eq!(unexplained("154 fault 154 kill-consumer keyed-1 away"), 0);
    assert_eq!(unexplained("154 fault 154 redis-kill * away"), 0);
    assert_eq!(unexplained("154 fault 154 kill-consumer keyed-2 away"), 1);
    assert_eq!(unexplained("154 fault 154 term-consumer keyed-1 away"), 1);
    assert_eq!(unexplained("9000 fault 8999 kill-consumer keyed-1 away"), 1);
    let failed = again.replace("153 end 0 1 keyed-1 done", "153 end 0 1 keyed-1 failed");
    assert_eq!(judged(&failed).duplicates, 0);
}

#[test]
fn a_key_is_handled_in_order_and_one_at_a_time() {
    let late = WELL.replace("153 end 0 1 keyed-1 done", "230 end 0 1 keyed-1 done");
    assert_eq!(judged(&late).disordered, 2, "too early, and at once");
    let other_key = late.replace("intend 1 keyed 7", "intend 1 keyed 8");
    assert_eq!(judged(&other_key).disordered, 0);
}

#[test]
fn what_was_cancelled_or_refused_is_not_delivered() {
    let cancelled = format!("{WELL}140 cancelled 0 130 done -\n");
    assert_eq!(judged(&cancelled).uncalled, 1);
    let late = format!("{WELL}140 cancelled 0 130 late\n");
    assert_eq!(judged(&late).uncalled, 0);
    let refused = WELL.replace("110 accepted 0 100 151", "110 refused 0");
    assert_eq!(judged(&refused).uncalled, 1);
}

#[test]
fn a_message_that_joined_another_is_lost_unless_that_one_comes_afterwards() {
    let sent = "100 intend 0 lines - work:0 150\n110 accepted 0 100 151\n\
        112 intend 1 lines - work:0 160\n120 merged 1 112 0\n";
    assert_eq!(judged(sent).lost, 2);
    let done =
        |at: u64| format!("{sent}{at} begin 0 1 101 printer-1\n{at} end 0 1 printer-1 done\n");
    let verdict = judged(&done(152));
    assert_eq!((verdict.lost, verdict.merged), (0, 1));
    assert_eq!(judged(&done(111)).lost, 1);
}

#[test]
fn a_broadcast_message_must_reach_each_listener_that_runs() {
    let sent = "100 intend 0 radio - work:0 5150\n110 accepted 0 100 5151\n";
    let one = "5152 begin 0 1 5151 radio-1\n5152 end 0 1 radio-1 done\n";
    let other = "5153 begin 0 1 5151 radio-2\n5153 end 0 1 radio-2 done\n";
    assert_eq!(judged(&format!("{sent}{one}")).lost, 1);
    let both = judged(&format!("{sent}{one}{other}"));
    assert_eq!((both.lost, both.heard, both.duplicates), (0, 2, 0));
    let away = "9000 fault 500 pull-out radio-1 x\n9000 fault 500 pull-out radio-2 x\n";
    assert_eq!(judged(&format!("{sent}{away}")).lost, 0);
    let without = "9000 fault 1000 no-group radio x\n";
    assert_eq!(judged(&format!("{sent}{away}{without}")).lost, 1);
    assert_eq!(judged(&format!("{sent}{one}{away}{without}")).lost, 0);
}

#[test]
fn a_message_for_two_groups_is_handled_by_each_once_and_garbage_of_one_comes_again_to_that_one() {
    let sent = |plan: &str| format!("100 intend 0 twice - {plan} 150\n110 accepted 0 100 151\n");
    let run = |at: u64, reader: &str, how: &str| {
        format!("{at} begin 0 1 151 {reader}\n{at} end 0 1 {reader} {how}\n")
    };
    let (first, second) = (
        run(152, "twice-first", "done"),
        run(153, "twice-second", "done"),
    );
    let (well, hopeless) = (sent("work:0"), sent("fail"));
    assert_eq!(judged(&format!("{well}{first}")).lost, 1);
    let both = judged(&format!("{well}{first}{second}"));
    assert_eq!((both.lost, both.duplicates), (0, 0));
    let failed = run(153, "twice-second", "failed");
    let kept = "900 garbage 0\n";
    assert_eq!(judged(&format!("{hopeless}{first}{failed}")).lost, 1);
    assert_eq!(judged(&format!("{hopeless}{failed}{kept}")).lost, 1);
    let again = run(500, "twice-second", "failed");
    let requeued = judged(&format!("{hopeless}{first}{failed}{again}{kept}"));
    assert_eq!((requeued.lost, requeued.unexplained), (0, 0));
    let to_both = run(20_000, "twice-first", "done");
    let requeued = judged(&format!("{hopeless}{first}{failed}{to_both}{again}{kept}"));
    assert_eq!(requeued.unexplained, 1);
}

#[test]
fn a_broadcast_message_that_was_deleted_while_it_waited_is_forgiven() {
    let sent = "100 intend 0 radio - work:0 95150\n110 accepted 0 100 95151\n";
    let deleted = judged(&format!("{sent}120 flushed 119\n"));
    assert_eq!((deleted.lost, deleted.forgiven), (0, 1));
    let before = format!("90 flushed 89\n{sent}");
    assert_eq!(judged(&before).lost, 1);
}

#[test]
fn a_machine_that_is_held_up_for_long_in_all_excuses_a_listener() {
    let sent = "100 intend 0 radio - work:0 5150\n110 accepted 0 100 5151\n";
    let stalls = |count: u64| {
        let stall = |n| format!("{} fault {} stall * x\n", 3500 + 500 * n, 3000 + 500 * n);
        (0..count).map(stall).collect::<String>()
    };
    assert_eq!(judged(&format!("{sent}{}", stalls(5))).lost, 1);
    assert_eq!(judged(&format!("{sent}{}", stalls(6))).lost, 0);
}

#[test]
fn a_recurring_message_comes_at_each_time_once_and_not_before() {
    let ticks = |lines: &str| judged(lines);
    let well = ticks("2001 tick 2000 clock-1\n4001 tick 4000 clock-1\n");
    assert_eq!((well.violations.len(), well.ticks), (0, 2));
    assert_eq!(
        ticks("2001 tick 2000 clock-1\n6001 tick 6000 clock-1\n").lost,
        1
    );
    assert_eq!(ticks("1999 tick 2000 clock-1\n").early, 1);
    let twice = "2001 tick 2000 clock-1\n2002 tick 2000 clock-1\n";
    assert_eq!(ticks(twice).unexplained, 1);
    let away = "2001 tick 2000 clock-1\n6001 tick 6000 clock-1\n4500 fault 3000 kill-manager manager-1 x\n";
    assert_eq!(ticks(away).lost, 0);
}
