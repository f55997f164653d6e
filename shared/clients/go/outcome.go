package lisarelay

import (
	"fmt"
	"time"
)

// The most bytes of an error that Lisa keeps.
const maxError = 1024

// Outcome is the outcome of a delivery: [Ack], [Retry], [Defer], [DeferUntil] or [Reject]. It is an error so that a [Handler] can
// return it.
type Outcome struct {
	verb  string
	after time.Duration
	until time.Time
	cause error
}

// Ack acknowledges the delivery: the work is done.
func Ack() Outcome { return Outcome{verb: "ack"} }

// Retry reports a failed attempt. The message is delivered again after a time: if it is zero, as the retry policy says. The cause
// may be nil. Lisa keeps 1,024 bytes of its text.
func Retry(after time.Duration, cause error) Outcome {
	return Outcome{verb: "retry", after: after, cause: cause}
}

// Defer delivers the message again after a time, without counting an attempt.
func Defer(after time.Duration) Outcome { return Outcome{verb: "defer", after: after} }

// DeferUntil delivers the message again at a time, without counting an attempt.
func DeferUntil(until time.Time) Outcome { return Outcome{verb: "defer", until: until} }

// Reject moves the message to garbage (dead letters). The cause may be nil. Lisa keeps 1,024 bytes of its text.
func Reject(cause error) Outcome { return Outcome{verb: "reject", cause: cause} }

func (o Outcome) Error() string {
	if o.cause == nil {
		return o.verb
	}
	return fmt.Sprintf("%s: %v", o.verb, o.cause)
}

// Unwrap returns the cause.
func (o Outcome) Unwrap() error { return o.cause }

// item returns a delivery with its outcome as an item of a batch.
func (o Outcome) item(token string) (*item, error) {
	if o.verb == "ack" && isPlain(token) {
		// Almost all outcomes. Without reflection, a worker needs a quarter less CPU time.
		return &item{text: []byte(`{"token":"` + token + `","ack":true}`)}, nil
	}
	inner := newBody()
	inner.duration("after", o.after)
	inner.instant("until", o.until)
	if o.cause != nil {
		// Unlike the method Error, Sprint does not panic.
		inner.fields["error"] = shortened(fmt.Sprint(o.cause), maxError)
	}
	var value any = inner.fields
	switch {
	case o.verb == "ack":
		value = true
	case o.verb == "":
		inner.refuse("outcome: is empty; use one of Ack, Retry, Defer, DeferUntil and Reject")
	case o.verb == "defer" && len(inner.fields) == 0:
		inner.fields["after"] = milliseconds(o.after)
	}
	if token == "" {
		inner.refuse("token: is empty")
	}
	outer := body{fields: map[string]any{"token": token, o.verb: value}, wrong: inner.wrong}
	text, err := outer.json()
	return &item{text: text}, err
}

// isPlain returns true for a text that JSON shows as it is, which all tokens are that Lisa makes.
func isPlain(text string) bool {
	for _, letter := range []byte(text) {
		if letter < ' ' || letter > '~' || letter == '"' || letter == '\\' {
			return false
		}
	}
	return text != ""
}
