//! Clients that close their side of the connection after a whole request, and wait for the answer.

use super::Victim;
use super::victim::MESSAGES;
use lisa_tests::SOON;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

/// Sends a request, closes the client's side, and returns the answer.
async fn half_closed(victim: &Victim, request: String) -> String {
    let mut stream = victim.connect().await;
    stream.write_all(request.as_bytes()).await.expect("sent");
    stream.shutdown().await.expect("half closed");
    let mut answer = String::new();
    let read = timeout(SOON, stream.read_to_string(&mut answer)).await;
    read.expect("the victim closes its side, too")
        .expect("answered");
    answer
}

#[tokio::test]
async fn a_send_whose_client_closes_its_side_is_stored_and_answered() {
    let victim = Victim::combined().await;
    for n in 0..40 {
        let request = format!(
            "POST {MESSAGES} HTTP/1.1\r\nhost: x\r\nlisa-id: m{n}\r\nlisa-delay: 1h\r\ncontent-length: 1\r\n\r\nx"
        );
        let answer = half_closed(&victim, request).await;
        assert!(answer.starts_with("HTTP/1.1 202 "), "{n}: {answer}");
    }
    assert_eq!(victim.accepted().await, 40);
    let cancel = format!("DELETE {MESSAGES}/m0 HTTP/1.1\r\nhost: x\r\n\r\n");
    let answer = half_closed(&victim, cancel).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
}

#[tokio::test]
async fn every_line_of_a_batch_whose_client_closes_its_side_has_a_result() {
    let victim = Victim::combined().await;
    for framing in ["content-length", "chunked"] {
        let line = |n| format!("{{\"id\":\"{framing}{n}\",\"payload\":{n},\"delay\":\"1h\"}}");
        let lines: Vec<_> = (0..500).map(line).collect();
        let body = lines.join("\n");
        let framed = match framing {
            "chunked" => format!(
                "transfer-encoding: chunked\r\n\r\n{:x}\r\n{body}\r\n0\r\n\r\n",
                body.len()
            ),
            _ => format!("content-length: {}\r\n\r\n{body}", body.len()),
        };
        let request = format!("POST {MESSAGES}:batch HTTP/1.1\r\nhost: x\r\n{framed}");
        let answer = half_closed(&victim, request).await;
        let results = answer.matches("\"outcome\":\"waiting\"").count();
        assert_eq!(results, 500, "{framing}");
        assert!(
            answer.ends_with("0\r\n\r\n"),
            "{framing}: the answer is whole"
        );
    }
}
