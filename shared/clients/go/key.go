package lisarelay

import (
	"context"
	"net/http"
	"time"
)

// CancelledKey is what became of the messages of an ordering key that was cancelled. If the request was repeated, these are the
// numbers of the last try.
type CancelledKey struct {
	// Cancelled is the number of messages that were cancelled.
	Cancelled int
	// Garbage is the number in garbage (dead letters), which stay there.
	Garbage int
	// InFlight is the number that are ready or in flight: too late.
	InFlight int
	// InGarbage lists the groups in whose garbage some of the cancelled messages stay.
	InGarbage []string
}

// RescheduledKey is what became of the messages of an ordering key that was rescheduled.
type RescheduledKey struct {
	// Rescheduled is the number of messages that were rescheduled.
	Rescheduled int
	// Garbage is the number in garbage (dead letters), which stay there.
	Garbage int
	// InFlight is the number that are ready or in flight: too late.
	InFlight int
	// InGarbage lists the groups in whose garbage some of the rescheduled messages stay.
	InGarbage []string
}

// changedKey is an answer about an ordering key. Its numbers are pointers, so that a missing one is noticed.
type changedKey struct {
	Cancelled   *int     `json:"cancelled"`
	Rescheduled *int     `json:"rescheduled"`
	Garbage     *int     `json:"garbage"`
	InFlight    *int     `json:"in_flight"`
	InGarbage   []string `json:"in_garbage"`
}

// CancelKey cancels all messages of an ordering key that have not been delivered yet. The topic needs `key_index`. They are
// cancelled one by one: if the request failed, some may be.
func (c *Client) CancelKey(ctx context.Context, topic, key string) (CancelledKey, error) {
	r := request{method: http.MethodDelete, key: key}
	answer, err := c.changeKey(ctx, r, topic, func(a *changedKey) bool { return a.Cancelled != nil })
	if err != nil {
		return CancelledKey{}, err
	}
	return CancelledKey{*answer.Cancelled, *answer.Garbage, *answer.InFlight, answer.InGarbage}, nil
}

// RescheduleKey makes all messages of an ordering key due after a time, if they have not been delivered yet. The topic needs
// `key_index`. They are rescheduled one by one: if the request failed, some may be.
func (c *Client) RescheduleKey(ctx context.Context, topic, key string, delay time.Duration) (RescheduledKey, error) {
	return c.rescheduleKey(ctx, topic, key, dueAfter(delay))
}

// RescheduleKeyAt makes all messages of an ordering key due at a time, like [Client.RescheduleKey]. A past time means now.
func (c *Client) RescheduleKeyAt(ctx context.Context, topic, key string, at time.Time) (RescheduledKey, error) {
	return c.rescheduleKey(ctx, topic, key, dueAt(at))
}

func (c *Client) rescheduleKey(ctx context.Context, topic, key string, b *body) (RescheduledKey, error) {
	content, err := b.json()
	if err != nil {
		return RescheduledKey{}, err
	}
	r := request{method: http.MethodPatch, content: content, key: key}
	answer, err := c.changeKey(ctx, r, topic, func(a *changedKey) bool { return a.Rescheduled != nil })
	if err != nil {
		return RescheduledKey{}, err
	}
	return RescheduledKey{*answer.Rescheduled, *answer.Garbage, *answer.InFlight, answer.InGarbage}, nil
}

func (c *Client) changeKey(ctx context.Context, r request, topic string, isComplete func(*changedKey) bool) (changedKey, error) {
	if r.key == "" {
		return changedKey{}, wrong("key: is empty")
	}
	return lookup(ctx, c, r, messagesPath(topic), nil, func(a *changedKey) bool {
		return a.Garbage != nil && a.InFlight != nil && isComplete(a)
	})
}
