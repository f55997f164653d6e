package lisarelay

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"time"
)

const maxRetryAfter = 60 * time.Second

// Error is a request that failed: a [*Problem] or a [*TransportError]. Use it as a target of [errors.As].
type Error interface {
	error
	// Retryable reports whether the request can be repeated.
	Retryable() bool
	// MessageID returns the id of the message, if it is known. To repeat a send, use it as [SendOptions.ID].
	MessageID() string

	// isInDoubt reports whether the request may have been carried out.
	isInDoubt() bool
	// retryAfter returns the time before the next try that the server requests.
	retryAfter() time.Duration
	// forItem returns a copy for an item of a batch, an earlier try of which may have been carried out.
	forItem(id string, wasInDoubt bool) Error
}

// ArgumentError is a wrong argument. Nothing was sent.
type ArgumentError struct {
	text string
}

func (e *ArgumentError) Error() string { return "lisarelay: " + e.text }

func wrong(format string, values ...any) error {
	return &ArgumentError{fmt.Sprintf(format, values...)}
}

// TransportError is a request without an answer from Lisa: no connection, a timeout, a broken connection, the page of a proxy, or
// no token to send. It can be repeated. If the context of the call ended, it wraps that error.
type TransportError struct {
	// ID is the id of the message, if the request was a send.
	ID string
	// Err is the cause.
	Err error
}

func (e *TransportError) Error() string { return "lisarelay: " + e.Err.Error() }

// Unwrap returns the cause.
func (e *TransportError) Unwrap() error { return e.Err }

// Retryable returns true.
func (e *TransportError) Retryable() bool { return true }

// MessageID returns ID.
func (e *TransportError) MessageID() string { return e.ID }

func (e *TransportError) isInDoubt() bool           { return true }
func (e *TransportError) retryAfter() time.Duration { return 0 }

func (e *TransportError) forItem(id string, _ bool) Error {
	return &TransportError{ID: id, Err: e.Err}
}

// Problem is an answer that is an error (RFC 9457). Code identifies it. The texts are for humans.
type Problem struct {
	// Status is the HTTP status.
	Status int `json:"status"`
	// Code identifies the error, such as "unknown_topic", "full" or "stale". It is empty if the answer is not from Lisa.
	Code   string `json:"code"`
	Type   string `json:"type"`
	Title  string `json:"title"`
	Detail string `json:"detail"`
	// Errors lists everything that is wrong with the request.
	Errors []FieldError `json:"errors"`
	// ID is the id of the affected message, if there is one.
	ID string `json:"id"`
	// Ended is the end of the affected message, if it has ended and Lisa still remembers it.
	Ended string `json:"ended"`
	// Into is the id of the message that stands for it, if Ended is "merged".
	Into string `json:"into"`
	// Stored is true if the message is stored although the code is "indeterminate".
	Stored bool `json:"stored"`
	// MaybeSettled is true, with the code "stale", if an earlier try of the same call may have settled the delivery.
	MaybeSettled bool `json:"-"`

	after time.Duration
}

// FieldError is a part of a request that is wrong.
type FieldError struct {
	Field  string `json:"field"`
	Detail string `json:"detail"`
}

func (e *Problem) Error() string {
	name := e.Code
	if name == "" {
		name = e.Title
	}
	return fmt.Sprintf("lisarelay: %d %s: %s", e.Status, name, e.Detail)
}

// Retryable reports whether the status is 408, 429, 502, 503 or 504.
func (e *Problem) Retryable() bool {
	switch e.Status {
	case http.StatusRequestTimeout, http.StatusTooManyRequests, http.StatusBadGateway, http.StatusServiceUnavailable, http.StatusGatewayTimeout:
		return true
	}
	return false
}

// MessageID returns ID.
func (e *Problem) MessageID() string { return e.ID }

func (e *Problem) isInDoubt() bool {
	return e.Status == http.StatusBadGateway || e.Status == http.StatusGatewayTimeout || e.Code == "indeterminate"
}

func (e *Problem) retryAfter() time.Duration { return e.after }

func (e *Problem) forItem(id string, wasInDoubt bool) Error {
	copied := *e
	copied.MaybeSettled = e.isStale() && wasInDoubt
	if id != "" {
		// The problem may name another message, such as the one to replace.
		copied.ID = id
	}
	return &copied
}

func (e *Problem) isStale() bool { return e.Code == "stale" }

func isStale(err error) bool {
	var problem *Problem
	return errors.As(err, &problem) && problem.isStale()
}

// problemOf reads the problem of an answer, which may come from a proxy.
func problemOf(status int, text []byte, header http.Header) *Problem {
	problem, err := parseProblem(text)
	if err != nil {
		problem = foreign(status, shortened(string(text), 200))
	}
	problem.Status = status
	problem.after = parseSeconds(header.Get("Retry-After"))
	return problem
}

// parseSeconds reads a number of seconds, up to a limit. Anything else counts as zero.
func parseSeconds(text string) time.Duration {
	seconds, err := strconv.ParseUint(text, 10, 64)
	if err != nil {
		return 0
	}
	if seconds > uint64(maxRetryAfter/time.Second) {
		return maxRetryAfter
	}
	return time.Duration(seconds) * time.Second
}

// parseProblem reads a problem. Fields of a wrong type count as missing.
func parseProblem(text []byte) (*Problem, error) {
	var problem Problem
	var wrongType *json.UnmarshalTypeError
	if err := json.Unmarshal(text, &problem); err != nil && !errors.As(err, &wrongType) {
		return nil, err
	}
	if !bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) {
		return nil, errors.New("a problem that is not an object")
	}
	return &problem, nil
}

func foreign(status int, detail string) *Problem {
	return &Problem{Status: status, Title: "not an answer from Lisa", Detail: detail}
}

// shortened returns a text of valid UTF-8 with at most so many bytes.
func shortened(text string, limit int) string {
	if len(text) > limit {
		text = text[:limit]
	}
	return strings.ToValidUTF8(text, "")
}
