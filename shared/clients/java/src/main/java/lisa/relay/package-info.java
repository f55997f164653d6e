/**
 * A client for Lisa, a delayed message queue on Redis Streams. Start with {@link lisa.relay.Lisa}.
 *
 * <p>All classes are safe for use by several threads. Wrong arguments, null among them, are an
 * {@link IllegalArgumentException}, whose message begins with the name of the argument. Failed requests are a
 * {@link lisa.relay.LisaException}.
 */
package lisa.relay;
