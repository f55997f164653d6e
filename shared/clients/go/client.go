// Package lisarelay is a client for Lisa, a delayed message queue on Redis Streams: it sends, changes and pulls messages over HTTP,
// runs workers, and verifies webhooks.
//
// Wrong arguments are an [*ArgumentError], and requests that failed are an [Error]. A request without an answer, and one answered
// with 408, 429, 502, 503 or 504, is repeated with growing pauses. A repeated send stores nothing twice.
package lisarelay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"time"
	"unicode"
	"unicode/utf8"
)

const (
	defaultTimeout = 10 * time.Second
	maxTimeout     = 24 * time.Hour
	defaultTries   = 5
	// The time that a pull may take in addition to the time limit.
	pullTime = 30 * time.Second
	pullWait = 20 * time.Second

	settlePath = "/v1/deliveries:settle"
	extendPath = "/v1/deliveries:extend"
)

// Options is the configuration of a client. Its zero value has the defaults.
type Options struct {
	// Gateway is the URL of the gateway, if it differs from that of the producer.
	Gateway string
	// Manager is the URL of the manager, if it differs from that of the producer.
	Manager string
	// Token is the bearer token, if Lisa requires one.
	Token string
	// TokenSource returns the bearer token for each request, in place of Token. It must be safe for concurrent use. The time
	// limit of the request bounds it, too. See [TokenFile].
	TokenSource func(context.Context) (string, error)
	// Timeout is the time limit of one try, from connecting to the last byte of the answer, at most a day. Zero means 10 s. A pull
	// gets 30 s more.
	Timeout time.Duration
	// Tries is the number of tries of a request. Zero means 5.
	Tries int
	// Transport makes the requests. By default, it uses a proxy of the environment for https only.
	Transport http.RoundTripper
}

// String returns the options that are no secrets.
func (o Options) String() string {
	return fmt.Sprintf("Gateway: %q, Manager: %q, Timeout: %v, Tries: %d", o.Gateway, o.Manager, o.Timeout, o.Tries)
}

// GoString returns the same as String.
func (o Options) GoString() string { return o.String() }

// Client is a client of one relay. It may be used by any number of goroutines. Create one, and keep it: it keeps connections.
type Client struct {
	// By listener.
	urls    [3]string
	token   func(context.Context) (string, error)
	timeout time.Duration
	tries   int
	http    *http.Client

	settle           sender[Ended]
	settles, extends *batcher[Ended]

	mu sync.Mutex
	// By topic; only those in use.
	sends map[string]*batcher[Sent]
}

// New creates a client. The address of `lisa-manager dev` is http://127.0.0.1:7812.
func New(url string, options Options) (*Client, error) {
	if err := options.check(url); err != nil {
		return nil, err
	}
	c := &Client{token: options.TokenSource, timeout: options.Timeout, tries: options.Tries}
	for to, other := range [...]string{toGateway: options.Gateway, toManager: options.Manager} {
		c.urls[to] = base(url)
		if other != "" {
			c.urls[to] = base(other)
		}
	}
	if options.Token != "" {
		c.token = func(context.Context) (string, error) { return options.Token, nil }
	}
	if c.timeout == 0 {
		c.timeout = defaultTimeout
	}
	if c.tries == 0 {
		c.tries = defaultTries
	}
	if options.Transport == nil {
		options.Transport = newTransport()
	}
	c.http = &http.Client{Transport: options.Transport, CheckRedirect: refuseRedirect}
	c.sends = map[string]*batcher[Sent]{}
	c.settle = newSender[Ended](c, settlePath, toGateway)
	c.settles = newBatcher(settlePath, c.settle, c.tries)
	c.extends = newBatcher(extendPath, newSender[Ended](c, extendPath, toGateway), c.tries)
	return c, nil
}

// refuseRedirect refuses a redirect, which would take the payload and the token to another address.
func refuseRedirect(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }

func (o Options) check(url string) error {
	var b body
	b.base("url", url)
	if o.Gateway != "" {
		b.base("Gateway", o.Gateway)
	}
	if o.Manager != "" {
		b.base("Manager", o.Manager)
	}
	if o.Token != "" && o.TokenSource != nil {
		b.refuse("Token, TokenSource: set only one of them")
	}
	if o.Token != "" && !isToken(strings.TrimSpace(o.Token)) {
		b.refuse("Token: has invalid characters")
	}
	if o.Timeout < 0 || o.Timeout > maxTimeout {
		b.refuse("Timeout: %v is negative, or longer than a day", o.Timeout)
	}
	if o.Tries < 0 {
		b.refuse("Tries: %d is negative", o.Tries)
	}
	return b.err()
}

// base refuses a text that is not the URL of a relay. It does not quote one that may contain a secret.
func (b *body) base(argument, text string) {
	u, err := url.Parse(text)
	if err == nil && (u.Scheme == "http" || u.Scheme == "https") && u.Host != "" && u.User == nil && u.RawQuery == "" && u.Fragment == "" {
		return
	}
	quoted := ""
	if !strings.ContainsAny(text, "@?#") {
		quoted = fmt.Sprintf("%q ", text)
	}
	b.refuse("%s: %sis not a URL with http or https and a host, without a user, a query and a fragment", argument, quoted)
}

func base(url string) string { return strings.TrimRight(url, "/") }

// Send sends a message. A []byte and a string are sent unchanged, and everything else as JSON. The options may be nil.
//
// Sends of one topic that are made while others are in flight share requests, and may be stored in any order: wait for each if the
// order matters. If the context ends before the message is in flight, it is not sent. To repeat a failed send, use the id of the
// [Error].
func (c *Client) Send(ctx context.Context, topic string, payload any, options *SendOptions) (Sent, error) {
	if options == nil {
		options = &SendOptions{}
	}
	where, err := batchPath(topic)
	if err != nil {
		return Sent{}, err
	}
	message, err := newItem(payload, *options)
	if err != nil {
		return Sent{}, err
	}
	sends := c.enter(topic, where)
	defer sends.leave()
	return sends.add(ctx, message)
}

// enter returns the batcher of a topic, which is in use until leave. Before it creates one, it drops those that are idle.
func (c *Client) enter(topic, where string) *batcher[Sent] {
	c.mu.Lock()
	defer c.mu.Unlock()
	sends, isKnown := c.sends[topic]
	if !isKnown {
		for name, one := range c.sends {
			if one.isIdle() {
				delete(c.sends, name)
			}
		}
		sends = newBatcher(where, newSender[Sent](c, where, toProducer), c.tries)
		c.sends[topic] = sends
	}
	sends.enter()
	return sends
}

// SendMany sends any number of messages in order, one request after the other. It returns a result for each, in order, or an
// [*ArgumentError]. If a whole request is refused with an error that is not retryable, or the context ends, the remaining messages
// get that error.
func (c *Client) SendMany(ctx context.Context, topic string, messages []NewMessage) ([]Result[Sent], error) {
	where, err := batchPath(topic)
	if err != nil {
		return nil, err
	}
	items := make([]*item, len(messages))
	for n, message := range messages {
		if items[n], err = newItem(message.Payload, message.Options); err != nil {
			return nil, wrong("message %d: %v", n, err)
		}
	}
	return sendInOrder(ctx, items, newSender[Sent](c, where, toProducer), c.tries), nil
}

// LookupOption is an option of the calls that find a message by its id.
type LookupOption func(*request)

// WithKey finds a message that was sent with this ordering key and an id of your own, without querying every shard.
func WithKey(key string) LookupOption {
	return func(r *request) { r.key = key }
}

// Get looks up a message that is still stored.
func (c *Client) Get(ctx context.Context, topic, id string, options ...LookupOption) (Message, error) {
	type found struct {
		Message
		payload
	}
	r := request{method: http.MethodGet, hasPayloads: true}
	answer, err := lookup(ctx, c, r, messagePath(topic, id), options, func(a *found) bool { return a.ID != "" })
	answer.Message.Payload = answer.payload.bytes()
	return answer.Message, err
}

// Cancel cancels a message that has not been delivered yet.
func (c *Client) Cancel(ctx context.Context, topic, id string, options ...LookupOption) (Cancelled, error) {
	type cancelled struct {
		Cancelled
		payload
	}
	r := request{method: http.MethodDelete, hasPayloads: true}
	answer, err := lookup(ctx, c, r, messagePath(topic, id), options, func(a *cancelled) bool { return a.ID != "" })
	answer.Cancelled.Payload = answer.payload.bytes()
	return answer.Cancelled, err
}

// Reschedule makes a message due after a time, if it has not been delivered yet.
func (c *Client) Reschedule(ctx context.Context, topic, id string, delay time.Duration, options ...LookupOption) (Sent, error) {
	return c.reschedule(ctx, topic, id, dueAfter(delay), options)
}

// RescheduleAt makes a message due at a time, if it has not been delivered yet. A past time means now.
func (c *Client) RescheduleAt(ctx context.Context, topic, id string, at time.Time, options ...LookupOption) (Sent, error) {
	return c.reschedule(ctx, topic, id, dueAt(at), options)
}

func dueAfter(delay time.Duration) *body {
	b := newBody()
	b.fields["delay"] = milliseconds(0)
	b.duration("delay", delay)
	return b
}

func dueAt(at time.Time) *body {
	b := newBody()
	b.instant("deliver_at", at)
	if at.IsZero() {
		b.refuse("at: is zero")
	}
	return b
}

func (c *Client) reschedule(ctx context.Context, topic, id string, b *body, options []LookupOption) (Sent, error) {
	content, err := b.json()
	if err != nil {
		return Sent{}, err
	}
	r := request{method: http.MethodPatch, content: content}
	return lookup(ctx, c, r, messagePath(topic, id), options, (*Sent).isComplete)
}

// DeliverNow delivers now a message that is waiting for its due time or for its next attempt.
func (c *Client) DeliverNow(ctx context.Context, topic, id string, options ...LookupOption) (Sent, error) {
	parts := append(messagePath(topic, id), "deliver-now")
	return lookup(ctx, c, request{method: http.MethodPost}, parts, options, (*Sent).isComplete)
}

// lookup sends a request about messages, and reads the answer.
func lookup[T any](ctx context.Context, c *Client, r request, parts []string, options []LookupOption, isComplete func(*T) bool) (answer T, err error) {
	if r.path, err = path(parts...); err != nil {
		return answer, err
	}
	for _, option := range options {
		option(&r)
	}
	if strings.TrimSpace(r.key) != r.key || strings.IndexFunc(r.key, unicode.IsControl) >= 0 || !utf8.ValidString(r.key) {
		return answer, wrong("key: %q cannot be sent in a header", r.key)
	}
	err = c.call(ctx, r, func(text []byte) error {
		var read T
		if err := json.Unmarshal(text, &read); err != nil {
			return err
		}
		if !isComplete(&read) {
			return errors.New("a field is missing")
		}
		answer = read
		return nil
	})
	return answer, err
}

func messagesPath(topic string) []string { return []string{"topics", topic, "messages"} }

func messagePath(topic, id string) []string { return append(messagesPath(topic), id) }

// arguments are the names of the arguments in a path, by the part before each.
var arguments = map[string]string{"topics": "topic", "groups": "group", "messages": "id", "schedules": "schedule", "tokens": "token"}

// path returns a path with escaped parts.
func path(parts ...string) (string, error) {
	var b body
	escaped, before := "/v1", ""
	for _, part := range parts {
		if part == "" || part == "." || part == ".." {
			b.refuse("%s: %q is not allowed", arguments[before], part)
		}
		escaped += "/" + url.PathEscape(part)
		before = part
	}
	return escaped, b.err()
}

func batchPath(topic string) (string, error) {
	where, err := path(messagesPath(topic)...)
	return where + ":batch", err
}
