/** A client for Lisa, a delayed message queue on Redis Streams. */
module lisa.relay {
    requires transitive java.net.http;

    exports lisa.relay;
}
