package lisarelay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"sync"
	"time"
)

// PullOptions are the options of a pull.
type PullOptions struct {
	// Group is "default" by default.
	Group string
	// Max is the largest number of deliveries, at most 200. Zero means 1.
	Max int
	// MaxPerKey is the largest number of deliveries with the same ordering key, in its order, at most 200. The messages behind them
	// wait until all are settled. Zero means 1.
	MaxPerKey int
	// MaxKeys is the largest number of ordering keys, at most 200. A delivery without a key counts as a key of its own. Zero means Max.
	MaxKeys int
	// Wait is the time to wait for the first message, at most 30 s. Default: 20 s.
	Wait time.Duration
	// NoWait makes the pull return at once if no message is ready.
	NoWait bool
	// Lease is the time for which each delivery is held, 1 s to 12 h. By default, that of the topic.
	Lease time.Duration
	// Consumer is the name of the worker, up to 100 bytes, which `lisa-manager workers` lists.
	Consumer string
}

// Delivery is a message that was pulled, and its lease. It may be used by any number of goroutines.
type Delivery struct {
	ID string `json:"id"`
	// Token is the secret with which the delivery is settled.
	Token string `json:"-"`
	// Attempt is the number of this attempt, from 1.
	Attempt int `json:"attempt"`
	// MaxAttempts is the number of the last attempt. If it fails, the message goes to garbage (dead letters).
	MaxAttempts int `json:"max_attempts"`
	// DueAt is the time at which this attempt was due.
	DueAt time.Time `json:"due_at"`
	// Key is the ordering key, if the message has one.
	Key string `json:"key"`
	// Late is true if the delivery is later than the topic's max_lateness allows.
	Late    bool              `json:"late"`
	Headers map[string]string `json:"headers"`
	Payload []byte            `json:"-"`

	client *Client
	// Sends its outcome: the batcher of the client or of a worker.
	settles *batcher[Ended]
	mu      sync.Mutex
	// The end of the lease.
	leaseUntil time.Time
	// The calls in flight that settle it.
	settling int
	// True once it was settled, or known to be stale.
	isSettled bool
	// True once it was acknowledged.
	isAcked bool
}

// Pull pulls messages. It returns none if no message became ready in time. It is not repeated if it fails, because a lost answer may hold
// messages until their lease ends. The end of the context closes the connection, so that they go to another worker.
func (c *Client) Pull(ctx context.Context, topic string, options PullOptions) ([]*Delivery, error) {
	if options.Group == "" {
		options.Group = "default"
	}
	where, err := path("topics", topic, "groups", options.Group, "pull")
	if err != nil {
		return nil, err
	}
	b := newBody()
	if options.Max == 0 {
		options.Max = 1
	}
	b.deliveries("Max", "max", options.Max)
	b.deliveries("MaxPerKey", "max_per_key", options.MaxPerKey)
	b.deliveries("MaxKeys", "max_keys", options.MaxKeys)
	if options.Wait == 0 && !options.NoWait {
		options.Wait = pullWait
	}
	b.duration("wait", options.Wait)
	b.duration("lease", options.Lease)
	b.text("consumer", options.Consumer)
	content, err := b.json()
	if err != nil {
		return nil, err
	}
	r := request{method: http.MethodPost, path: where, content: content, to: toGateway, hasPayloads: true, wait: pullTime}
	var deliveries []*Delivery
	failure := c.try(ctx, r, func(text []byte) (err error) {
		deliveries, err = c.readDeliveries(text, options)
		return err
	})
	if failure != nil {
		return nil, failure
	}
	return deliveries, nil
}

// deliveryBody is a delivery in an answer.
type deliveryBody struct {
	*Delivery
	payload
	Token      string    `json:"token"`
	LeaseUntil time.Time `json:"lease_until"`
}

func (c *Client) readDeliveries(text []byte, options PullOptions) ([]*Delivery, error) {
	var answer struct {
		Deliveries list[deliveryBody] `json:"deliveries"`
	}
	answer.Deliveries.max = options.Max
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, err
	}
	return c.deliveriesOf(answer.Deliveries, options.MaxKeys)
}

// deliveriesOf returns the deliveries of an answer, which have at most maxKeys ordering keys if that is not zero.
func (c *Client) deliveriesOf(read list[deliveryBody], maxKeys int) ([]*Delivery, error) {
	if read.items == nil {
		return nil, errors.New("deliveries are missing")
	}
	deliveries := make([]*Delivery, len(read.items))
	for n, one := range read.items {
		if one.Delivery == nil || one.ID == "" || one.Token == "" || one.LeaseUntil.IsZero() {
			return nil, errors.New("a field of a delivery is missing")
		}
		one.Delivery.Token, one.Payload = one.Token, one.payload.bytes()
		one.client, one.settles, one.leaseUntil = c, c.settles, one.LeaseUntil
		deliveries[n] = one.Delivery
	}
	if keys := len(runsOf(deliveries)); maxKeys > 0 && keys > maxKeys {
		return nil, fmt.Errorf("deliveries of %d keys for a pull of %d", keys, maxKeys)
	}
	return deliveries, nil
}

// runsOf returns the deliveries of each ordering key, in order. One without a key is alone.
func runsOf(deliveries []*Delivery) (runs [][]*Delivery) {
	indexes := map[string]int{}
	for _, one := range deliveries {
		n, isKnown := indexes[one.Key]
		if !isKnown || one.Key == "" {
			n = len(runs)
			runs = append(runs, nil)
			indexes[one.Key] = n
		}
		runs[n] = append(runs[n], one)
	}
	return runs
}

// String returns the id and the attempt. It hides the token from logs.
func (d *Delivery) String() string {
	return fmt.Sprintf("attempt %d of %s", d.Attempt, d.ID)
}

// GoString returns the same as String.
func (d *Delivery) GoString() string { return d.String() }

// JSON parses the payload as JSON into a value, like [json.Unmarshal].
func (d *Delivery) JSON(value any) error { return json.Unmarshal(d.Payload, value) }

// LeaseUntil returns the end of the lease.
func (d *Delivery) LeaseUntil() time.Time {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.leaseUntil
}

// Ack acknowledges the delivery: the work is done.
func (d *Delivery) Ack(ctx context.Context) (Ended, error) { return d.Settle(ctx, Ack()) }

// Retry reports a failed attempt. See the function [Retry].
func (d *Delivery) Retry(ctx context.Context, after time.Duration, cause error) (Ended, error) {
	return d.Settle(ctx, Retry(after, cause))
}

// Defer delivers the message again after a time, without counting an attempt.
func (d *Delivery) Defer(ctx context.Context, after time.Duration) (Ended, error) {
	return d.Settle(ctx, Defer(after))
}

// Reject moves the message to garbage (dead letters). The cause may be nil.
func (d *Delivery) Reject(ctx context.Context, cause error) (Ended, error) {
	return d.Settle(ctx, Reject(cause))
}

// Settle settles the delivery. See [Client.Settle].
func (d *Delivery) Settle(ctx context.Context, outcome Outcome) (Ended, error) {
	d.mu.Lock()
	d.settling++
	d.mu.Unlock()
	ended, err := settleBy(ctx, d.settles, d.Token, outcome)
	d.mu.Lock()
	d.settling--
	d.isSettled = d.isSettled || err == nil || isStale(err)
	d.isAcked = d.isAcked || err == nil && ended.Outcome == "acked"
	d.mu.Unlock()
	return ended, err
}

// Extend replaces the lease with a new one that starts now, 1 s to 12 h; zero means that of the topic.
func (d *Delivery) Extend(ctx context.Context, lease time.Duration) (Ended, error) {
	ended, err := d.client.Extend(ctx, d.Token, lease)
	if err == nil && !ended.LeaseUntil.IsZero() {
		d.mu.Lock()
		d.leaseUntil = ended.LeaseUntil
		d.mu.Unlock()
	}
	return ended, err
}

// wasAcked reports whether the delivery was acknowledged.
func (d *Delivery) wasAcked() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.isAcked
}

// hasEnded reports whether the delivery is settled, or known to be stale.
func (d *Delivery) hasEnded() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.isSettled
}

// isOpen reports whether the delivery has not ended, and no call in flight settles it.
func (d *Delivery) isOpen() bool {
	d.mu.Lock()
	defer d.mu.Unlock()
	return !d.isSettled && d.settling == 0
}

// Settlement is a delivery with its outcome.
type Settlement struct {
	Token   string
	Outcome Outcome
}

// String returns the outcome. It hides the token from logs.
func (s Settlement) String() string { return s.Outcome.Error() }

// GoString returns the same as String.
func (s Settlement) GoString() string { return s.String() }

// Settle settles a delivery by its token. A [Problem] with the code "stale" means that the lease was lost, or that the delivery is
// settled. If the context ends before the settlement is in flight, it is not sent.
func (c *Client) Settle(ctx context.Context, token string, outcome Outcome) (Ended, error) {
	return settleBy(ctx, c.settles, token, outcome)
}

func settleBy(ctx context.Context, settles *batcher[Ended], token string, outcome Outcome) (Ended, error) {
	one, err := outcome.item(token)
	if err != nil {
		return Ended{}, err
	}
	return settles.add(ctx, one)
}

// SettleMany settles any number of deliveries in order, one request after the other. It returns a result for each, in order, or an
// [*ArgumentError]. If a whole request is refused with an error that is not retryable, or the context ends, the remaining deliveries
// get that error.
func (c *Client) SettleMany(ctx context.Context, settlements []Settlement) ([]Result[Ended], error) {
	items := make([]*item, len(settlements))
	for n, settlement := range settlements {
		var err error
		if items[n], err = settlement.Outcome.item(settlement.Token); err != nil {
			return nil, wrong("settlement %d: %v", n, err)
		}
	}
	return sendInOrder(ctx, items, c.settle, c.tries), nil
}

// Extend replaces the lease of a delivery with a new one that starts now, 1 s to 12 h; zero means that of the topic.
func (c *Client) Extend(ctx context.Context, token string, lease time.Duration) (Ended, error) {
	b := newBody()
	b.text("token", token)
	b.duration("lease", lease)
	if token == "" {
		b.refuse("token: is empty")
	}
	text, err := b.json()
	if err != nil {
		return Ended{}, err
	}
	return c.extends.add(ctx, &item{text: text})
}
