//! The health of a process with a killed loop.

use super::*;

#[tokio::test]
async fn a_killed_loop_turns_healthz_red() {
    let shutdown = Shutdown::manual(PATIENCE);
    let supervisor = Supervisor::new(&shutdown);
    supervisor.spawn("mover", Policy::restart(), |_| {
        pending::<Result<(), String>>()
    });
    let health = supervisor.health();
    let metrics = Metrics::new(Registry::default(), "0", "test");
    let tokens = TokenSet::new(vec![Token::new("eyes", ABC, vec![Scope::Read]).unwrap()]);
    // On loopback, where requests of strangers may arrive through a proxy on this host.
    let router = ops::router(
        health,
        Arc::new(ops::Hindrances::default),
        metrics.clone(),
        shutdown.clone(),
        ops::Errors::at("127.0.0.1:1".parse().unwrap(), &tokens),
    );
    let socket = Arc::new(Socket::bind("127.0.0.1:0".parse().unwrap()).await.unwrap());
    let address = socket.address();
    let until = shutdown.clone();
    supervisor.spawn("http", Policy::restart(), move |heartbeat| {
        heartbeat.unlimited();
        let (socket, router) = (socket.clone(), router.clone());
        let (metrics, until) = (metrics.clone(), until.clone());
        async move {
            let listener = socket.listener().await?;
            let (limits, rule) = (HttpLimits::default(), CrossSite::default());
            let routes = Routes::new(router, limits, rule, &metrics, until.draining());
            serve(listener, routes, &Tls::default(), &metrics, &until).await
        }
    });
    let healthz = async |more: &str| {
        let mut stream: Wire = Box::new(TcpStream::connect(address).await.unwrap());
        let request =
            format!("GET /healthz HTTP/1.1\r\nhost: x\r\nconnection: close\r\n{more}\r\n");
        stream.write_all(request.as_bytes()).await.unwrap();
        rest(&mut stream).await
    };
    let eyes = "authorization: Bearer abc\r\n";
    assert!(healthz("").await.starts_with("HTTP/1.1 200 "));
    supervisor.abort("mover");
    let started = Instant::now();
    let red = loop {
        let answer = healthz(eyes).await;
        if answer.starts_with("HTTP/1.1 503 ") {
            break answer;
        }
        assert!(started.elapsed() < PATIENCE, "{answer}");
    };
    assert!(
        red.contains(r#""name":"mover""#) && red.contains(r#""last_error":"killed""#),
        "{red}"
    );
    // Without a configured token.
    for more in ["", "authorization: Bearer abd\r\n"] {
        let red = healthz(more).await;
        assert!(
            red.starts_with("HTTP/1.1 503 ") && red.contains("hidden"),
            "{red}"
        );
        assert!(!red.contains("killed"), "{red}");
    }
    shutdown.end();
}
