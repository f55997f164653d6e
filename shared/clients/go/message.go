package lisarelay

import (
	"crypto/rand"
	"encoding/base64"
	"fmt"
	"strings"
	"time"
	"unicode/utf8"
)

// SendOptions are the options of a message. A zero value means the default of the topic. Durations are rounded up to milliseconds.
type SendOptions struct {
	// ID is the id (idempotency key), [A-Za-z0-9_:-]{1,64}. By default, a UUID of version 7.
	ID string
	// Delay is the time until it is due. Set Delay or DeliverAt, or neither to deliver it now.
	Delay time.Duration
	// DeliverAt is the time at which it is due. A past one means now.
	DeliverAt time.Time
	// Key is the ordering key, up to 256 bytes.
	Key string
	// MergeKey is the merge key, up to 256 bytes.
	MergeKey string
	// Priority is the priority. Of the messages that are due, the one with the highest number is delivered first. It may
	// be any number from -2147483648 to 2147483647.
	Priority int32
	// TTL is the time after the due time at which it expires. Set TTL or ExpiresAt, or neither.
	TTL       time.Duration
	ExpiresAt time.Time
	// MaxAttempts is the number of attempts before it goes to garbage (dead letters), up to 1000. Zero means that of the topic.
	MaxAttempts int
	// Retry is the retry policy, with the keys of the configuration: {"kind": "fixed", "delay": "5s"}.
	Retry map[string]any
	// Replace is the id of a message to cancel in the same step. If that message cannot be cancelled, nothing is sent.
	Replace string
	// Durability is the durability to wait for: "memory", "aof" or "replicas:N".
	Durability string
	// EvenIfCancelled sends the message even if its id was cancelled.
	EvenIfCancelled bool
	// Headers are the headers of the message. A content-type replaces the one of the payload.
	Headers map[string]string
}

// NewMessage is a message of a batch. See [Client.Send] for its payload.
type NewMessage struct {
	Payload any
	Options SendOptions
}

// Sent is a message that was accepted.
type Sent struct {
	// ID is the id of the message. If it was merged, that of the earlier message.
	ID string `json:"id"`
	// Outcome is "waiting", "ready", "merged", "duplicate" or "rescheduled".
	Outcome string `json:"outcome"`
	// DueAt is its due time, or zero if it is no longer waiting.
	DueAt time.Time `json:"due_at"`
	// Ended is the end of an earlier message with this id, if it has ended. Nothing will be delivered under this id.
	Ended string `json:"ended"`
	// Durability is the durability that was reached, or empty for "memory".
	Durability string `json:"durability"`
}

func (s *Sent) isComplete() bool { return s.ID != "" && s.Outcome != "" }

// Message is a stored message with its state in each group. State is that in the first group that still has it.
type Message struct {
	ListedMessage
	Topic       string            `json:"topic"`
	MaxAttempts int               `json:"max_attempts"`
	MergeKey    string            `json:"merge_key"`
	Priority    int32             `json:"priority"`
	ExpiresAt   time.Time         `json:"expires_at"`
	Headers     map[string]string `json:"headers"`
	Groups      []GroupState      `json:"groups"`
	Payload     []byte            `json:"-"`
}

// GroupState is the state of a message in a group, and what it waits for.
type GroupState struct {
	Group string `json:"group"`
	State string `json:"state"`
	Why   string `json:"why"`
	// Holder is the id of the message that holds its ordering key, if it is parked.
	Holder string `json:"holder"`
	// Attempts are the last failed attempts, up to five, newest first.
	Attempts []FailedAttempt `json:"attempts"`
}

// FailedAttempt is a failed attempt of a message.
type FailedAttempt struct {
	At time.Time `json:"at"`
	// Outcome is "failed", "rejected" or "lease_expired".
	Outcome  string `json:"outcome"`
	Consumer string `json:"consumer"`
	// Error is its error, shortened to 200 bytes.
	Error string `json:"error"`
}

// Cancelled is a cancelled message. Payload and Headers are nil if it was cancelled before, or if the token lacks the scope "read".
type Cancelled struct {
	ID      string            `json:"id"`
	Headers map[string]string `json:"headers"`
	// InGarbage lists the groups that had moved it to garbage (dead letters) before. Their copies stay there.
	InGarbage []string `json:"in_garbage"`
	Payload   []byte   `json:"-"`
}

// Ended is the end of a delivery, or the new end of its lease.
type Ended struct {
	// Outcome is "acked", "retry", "deferred", "garbage", "expired", "lost" or "extended".
	Outcome string `json:"outcome"`
	// DueAt is the time of the next delivery, if there is one.
	DueAt time.Time `json:"due_at"`
	// LeaseUntil is the new end of the lease, after an extension.
	LeaseUntil time.Time `json:"lease_until"`
}

// newItem returns a message as an item of a batch.
func newItem(payload any, options SendOptions) (*item, error) {
	if options.ID == "" {
		options.ID = newID()
	}
	b := newBody()
	b.text("id", options.ID)
	b.duration("delay", options.Delay)
	b.instant("deliver_at", options.DeliverAt)
	b.text("key", options.Key)
	b.text("merge_key", options.MergeKey)
	b.number("priority", int(options.Priority))
	b.duration("ttl", options.TTL)
	b.instant("expires_at", options.ExpiresAt)
	b.number("max_attempts", options.MaxAttempts)
	b.text("replace", options.Replace)
	b.text("durability", options.Durability)
	if options.Retry != nil {
		b.fields["retry"] = options.Retry
	}
	if options.EvenIfCancelled {
		b.fields["even_if_cancelled"] = true
	}
	b.payload(payload, options.Headers)
	text, err := b.json()
	return &item{text: text, id: options.ID}, err
}

// payload adds a payload, and its type to the headers unless they have one.
func (b *body) payload(payload any, headers map[string]string) {
	var contentType string
	switch payload := payload.(type) {
	case []byte:
		contentType = "application/octet-stream"
		b.bytes(payload)
	case string:
		contentType = "text/plain; charset=utf-8"
		b.bytes([]byte(payload))
	default:
		contentType = "application/json"
		b.fields["payload"] = payload
	}
	all := map[string]string{}
	for name, value := range headers {
		b.check("headers: "+name, name+value)
		if strings.EqualFold(name, "content-type") {
			contentType = ""
		}
		all[name] = value
	}
	if contentType != "" {
		all["content-type"] = contentType
	}
	b.fields["headers"] = all
}

func (b *body) bytes(payload []byte) {
	if utf8.Valid(payload) && jsonLength(payload) <= base64.StdEncoding.EncodedLen(len(payload))+len(`""`) {
		b.fields["payload_text"] = string(payload)
	} else {
		b.fields["payload_base64"] = payload
	}
}

// jsonLength returns the length of a text as JSON, with quotes. Control characters take up to six bytes each.
func jsonLength(text []byte) int {
	length := len(`""`)
	for _, r := range string(text) {
		switch {
		case strings.ContainsRune("\"\\\n\r\t", r):
			length += len(`\n`)
		case r < ' ' || r == '\u2028' || r == '\u2029':
			length += len(`\u0000`)
		default:
			length += utf8.RuneLen(r)
		}
	}
	return length
}

// newID returns a UUID of version 7, whose first part is the time.
func newID() string {
	var id [16]byte
	if _, err := rand.Read(id[:]); err != nil {
		// The system has no random numbers: nothing works.
		panic(err)
	}
	now := time.Now().UnixMilli()
	for n := range id[:6] {
		id[n] = byte(now >> (40 - 8*n))
	}
	id[6] = id[6]&0x0f | 0x70
	id[8] = id[8]&0x3f | 0x80
	return fmt.Sprintf("%x-%x-%x-%x-%x", id[:4], id[4:6], id[6:8], id[8:10], id[10:])
}

// payload is a payload in an answer.
type payload struct {
	Text   *string `json:"payload"`
	Base64 []byte  `json:"payload_base64"`
}

func (p payload) bytes() []byte {
	if p.Text != nil {
		return []byte(*p.Text)
	}
	return p.Base64
}
