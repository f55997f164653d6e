//! The users that the documentation shows to operators, one for each role, for tests to run with.

/// The page that has the only copy of them.
const PAGE: &str = include_str!("../../shared/docs/operate/topologies.md");

/// A user of one role.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct User {
    /// `lisa-producer`, `lisa-manager`, `lisa-consumer`, `lisa-manager-producer` or `lisa-operator`.
    pub name: &'static str,
    /// The rules that follow the name in `ACL SETUSER`.
    pub rules: &'static str,
}

impl User {
    /// All of them, and the default user as the page leaves it.
    pub(crate) fn on_page() -> Vec<Self> {
        let line = |line: &'static str| {
            let (name, rules) = line.strip_prefix("user ")?.split_once(' ')?;
            Some(Self { name, rules })
        };
        PAGE.lines().filter_map(line).collect()
    }

    /// The users of the roles.
    pub fn all() -> Vec<Self> {
        let mut users = Self::on_page();
        users.retain(|user| user.name != "default");
        users
    }

    /// Returns the additional rights that a deployment needs, in the words of the page: `on a cluster`.
    ///
    /// # Panics
    /// Panics if the page does not have it.
    pub fn besides(deployment: &str) -> Vec<&'static str> {
        let lines = PAGE.lines().filter(|line| line.starts_with('+'));
        let mut rights = lines.filter_map(|line| {
            let (rights, what) = line.split_once("  ")?;
            what.trim().starts_with(deployment).then_some(rights)
        });
        let found = rights.next();
        let found = found.unwrap_or_else(|| panic!("the page has no rights {deployment}"));
        found.split(' ').collect()
    }

    /// The one of this name.
    ///
    /// # Panics
    /// Panics if the page has none.
    pub fn named(name: &str) -> Self {
        let found = Self::all().into_iter().find(|user| user.name == name);
        found.unwrap_or_else(|| panic!("the page has no user {name}"))
    }

    /// Its password.
    pub fn password(&self) -> &'static str {
        let mut rules = self.rules.split(' ');
        rules
            .find_map(|rule| rule.strip_prefix('>'))
            .expect("the user has a password")
    }

    /// The commands that it may run, as rules name them: `xgroup|create`.
    pub fn commands(&self) -> impl Iterator<Item = &'static str> {
        self.rules
            .split(' ')
            .filter_map(|rule| rule.strip_prefix('+'))
    }
}
