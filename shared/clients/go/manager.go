package lisarelay

import (
	"context"
	"encoding/json"
	"errors"
	"net/http"
	"time"
)

// The largest limit of a page.
const maxPage = 1000

// ListOptions are the options of a list. Its zero value lists the waiting messages, oldest first.
type ListOptions struct {
	// State is "waiting", "backlog", "parked", "ready", "in_flight", "retry" or "garbage" (dead letters).
	State string
	// Group is the group. If the topic has several, all states but "waiting" need it.
	Group string
	// Key selects the messages of an ordering key: in garbage, or without State and Group, in any state. The latter needs the
	// `key_index` of the topic.
	Key string
	// Error selects the messages in garbage with this text in their last error, 1 to 200 characters; `#`, `*` and `…` stand for any
	// text.
	Error string
	// Reason selects the messages in garbage by the reason: "exhausted", "rejected" or "expired".
	Reason string
	// From and To select the messages from a time on, and before one: the due time if they are waiting, that of the next attempt in
	// "retry", and that of the move to garbage. Other states have no such time.
	From, To time.Time
	// Order is the order by that time, within each shard: "oldest" or "newest". By default, "oldest".
	Order string
	// Limit is the largest number of messages of a page, at most 1000. Zero means 100.
	Limit int
	// Cursor is [MessagePage.Next] of the page before, whose other options must be the same.
	Cursor string
}

// MessagePage is a page of messages. After a search of garbage, it may be empty and still have a Next.
type MessagePage struct {
	Messages []ListedMessage
	// Next is the cursor of the next page, or empty if this is the last one.
	Next string
}

// ListedMessage is a message without its payload and options.
type ListedMessage struct {
	ID string `json:"id"`
	// State is "waiting", "backlog", "parked", "ready", "in_flight", "retry" or "garbage".
	State string `json:"state"`
	// Attempt is the number of the current or next attempt; in garbage, of the attempts made.
	Attempt int `json:"attempt"`
	// DueAt is the time at which it is due or was due. It is zero in garbage, and if it was not read.
	DueAt time.Time `json:"due_at"`
	// Key is its ordering key, if it has one.
	Key string `json:"key"`
	// Consumer is the name of its worker, if it is known.
	Consumer string `json:"consumer"`
	// Error is its last error, if an attempt has failed.
	Error string `json:"error"`
	// Reason is why it is in garbage: "exhausted", "rejected" or "expired".
	Reason string `json:"reason"`
	// GarbageAt is the time at which it was moved to garbage.
	GarbageAt time.Time `json:"garbage_at"`
}

// Requeued is the result of a requeue. If the request was repeated, the messages that an earlier try requeued are missing.
type Requeued struct {
	// Done is the number of messages that were requeued.
	Done int
	// Found is the number of messages that were in garbage.
	Found int
	// Missing lists the ids that are not in the garbage of the group.
	Missing []string
}

// List lists messages, a page at a time. The manager answers it.
func (c *Client) List(ctx context.Context, topic string, options ListOptions) (MessagePage, error) {
	where, err := path(messagesPath(topic)...)
	if err != nil {
		return MessagePage{}, err
	}
	query, err := options.query()
	if err != nil {
		return MessagePage{}, err
	}
	max := options.Limit
	if max <= 0 {
		max = maxPage
	}
	var page MessagePage
	r := request{method: http.MethodGet, path: where, query: query, to: toManager}
	err = c.call(ctx, r, func(text []byte) (err error) {
		page, err = readPage(text, max)
		return err
	})
	return page, err
}

func (o ListOptions) query() (string, error) {
	b := newBody()
	b.text("state", o.State)
	b.text("group", o.Group)
	b.text("key", o.Key)
	b.text("error", o.Error)
	b.text("reason", o.Reason)
	b.instant("from", o.From)
	b.instant("to", o.To)
	b.text("order", o.Order)
	b.number("limit", o.Limit)
	b.text("cursor", o.Cursor)
	return b.query()
}

func readPage(text []byte, max int) (MessagePage, error) {
	var answer struct {
		Messages list[ListedMessage] `json:"messages"`
		Next     string              `json:"next"`
	}
	answer.Messages.max = max
	if err := json.Unmarshal(text, &answer); err != nil {
		return MessagePage{}, err
	}
	if answer.Messages.items == nil {
		return MessagePage{}, errors.New("messages are missing")
	}
	for _, one := range answer.Messages.items {
		if one.ID == "" || one.State == "" {
			return MessagePage{}, errors.New("a field of a message is missing")
		}
	}
	return MessagePage{answer.Messages.items, answer.Next}, nil
}

// Requeue requeues messages from the garbage (dead letters) of a group, such as "default": it delivers them again, with their
// attempts reset. The manager answers it. If the request failed, some may be requeued: repeat it.
func (c *Client) Requeue(ctx context.Context, topic, group string, ids []string) (Requeued, error) {
	b := newBody()
	b.fields["ids"] = ids
	if len(ids) == 0 {
		b.refuse("ids: is empty")
	}
	for n, id := range ids {
		b.check("ids", id)
		if id == "" {
			b.refuse("ids: number %d is empty", n)
		}
	}
	content, err := b.json()
	if err != nil {
		return Requeued{}, err
	}
	type requeued struct {
		Done    *int     `json:"done"`
		Found   *int     `json:"found"`
		Missing []string `json:"missing"`
	}
	r := request{method: http.MethodPost, content: content, to: toManager}
	parts := []string{"topics", topic, "groups", group, "garbage", "requeue"}
	answer, err := lookup(ctx, c, r, parts, nil, func(a *requeued) bool { return a.Done != nil && a.Found != nil })
	if err != nil {
		return Requeued{}, err
	}
	return Requeued{*answer.Done, *answer.Found, answer.Missing}, nil
}
