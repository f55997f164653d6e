//! start_move_task: a task is stored only if none was started since its gateway counted them.

use lisa_tests::Relay;

#[tokio::test]
async fn of_two_tasks_that_counted_the_same_ones_only_one_is_stored() {
    let relay = Relay::start("start_move_task").await;
    let broker = relay.broker();
    let starts = broker.move_tasks().await.unwrap().starts;
    let start = async |id: &str, starts| broker.start_move_task(id, "x", starts).await.unwrap();
    assert!(start("a", starts).await);
    assert!(!start("b", starts).await);
    // A repeated call.
    assert!(start("a", starts).await);
    let stored = broker.move_tasks().await.unwrap();
    let ids: Vec<_> = stored.tasks.iter().map(|task| &*task.id).collect();
    assert_eq!((ids, stored.starts), (vec!["a"], starts + 1));
    assert!(start("b", stored.starts).await);
    // Those that are forgotten were started, too.
    let all = ["a", "b"].map(str::to_owned);
    broker.forget_move_tasks(&all).await.unwrap();
    let stored = broker.move_tasks().await.unwrap();
    assert_eq!((stored.tasks.len(), stored.starts), (0, starts + 2));
}
