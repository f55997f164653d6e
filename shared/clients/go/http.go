package lisarelay

import (
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"time"
	"unicode/utf8"
)

const (
	// The most bytes of an answer.
	maxAnswer = 8 << 20
	// The most bytes of an answer with payloads: up to 16 MiB, each byte of which may take six in JSON.
	maxPayloads = 128 << 20
	maxPart     = 1 << 20
)

// listener is where a request goes.
type listener int

const (
	toProducer listener = iota
	toGateway
	toManager
)

// request is a request of one call.
type request struct {
	method, path string
	// The query, with its question mark. It is not part of errors.
	query string
	// The body, as JSON.
	content []byte
	key     string
	// The condition of a change: its header, and the value.
	condition   [2]string
	to          listener
	hasPayloads bool
	// The answer is 204, without a body.
	noContent bool
	// A repeat could do more than a single request.
	isSentOnce bool
	// The time that the server may wait, in addition to the time limit.
	wait time.Duration
}

// TokenFile returns an [Options.TokenSource] that reads a file for each request.
func TokenFile(path string) func(context.Context) (string, error) {
	return func(context.Context) (string, error) {
		text, err := os.ReadFile(path)
		return string(text), err
	}
}

// newTransport returns a transport with a connection for each of many concurrent requests. It speaks only HTTP/1, so that the end of
// a context closes the connection, and a dead connection fails one request only.
func newTransport() *http.Transport {
	return &http.Transport{
		Proxy:               secureProxy,
		DisableCompression:  true,
		MaxIdleConnsPerHost: 100,
		IdleConnTimeout:     90 * time.Second,
		TLSNextProto:        map[string]func(string, *tls.Conn) http.RoundTripper{},
		// In addition to the limit of the body.
		MaxResponseHeaderBytes: 1 << 20,
	}
}

// secureProxy returns the proxy of the environment for requests that it cannot read.
func secureProxy(r *http.Request) (*url.URL, error) {
	if r.URL.Scheme != "https" {
		return nil, nil
	}
	return http.ProxyFromEnvironment(r)
}

// call sends a request, and repeats it while its error is retryable.
func (c *Client) call(ctx context.Context, r request, read func([]byte) error) error {
	var last Error
	for attempt := 1; ; attempt++ {
		failure := c.try(ctx, r, read)
		if failure == nil {
			return nil
		}
		if ctx.Err() == nil || !errors.Is(failure, ctx.Err()) {
			if !failure.Retryable() || r.isSentOnce || attempt >= c.tries {
				return failure
			}
			last = failure
		}
		if !pause(ctx, attempt, failure.retryAfter()) {
			return &TransportError{Err: noAnswer(r.method, r.path, ctx.Err(), last)}
		}
	}
}

// noAnswer returns the cause of a request that ended without an answer, with the failure of the try before, if there was one.
func noAnswer(method, path string, err error, last Error) error {
	if last == nil {
		return fmt.Errorf("no answer to %s %s: %w", method, path, err)
	}
	return fmt.Errorf("no answer to %s %s: %w, after: %v", method, path, err, last)
}

// try sends a request once, and passes the text of the answer to read.
func (c *Client) try(ctx context.Context, r request, read func([]byte) error) Error {
	limited, cancel := context.WithTimeout(ctx, c.timeout+r.wait)
	defer cancel()
	answer, text, err := c.exchange(limited, r)
	if err != nil {
		if ctx.Err() != nil {
			err = ctx.Err()
		}
		return &TransportError{Err: noAnswer(r.method, r.path, err, nil)}
	}
	if answer.StatusCode >= 300 && answer.StatusCode < 400 {
		return foreign(answer.StatusCode, "a redirect, which is not followed")
	}
	if answer.StatusCode < 200 || answer.StatusCode >= 300 {
		return problemOf(answer.StatusCode, text, answer.Header)
	}
	if r.noContent != (answer.StatusCode == http.StatusNoContent) {
		return &TransportError{Err: fmt.Errorf("not an answer from Lisa to %s %s: its status is %d", r.method, r.path, answer.StatusCode)}
	}
	if err := read(text); err != nil {
		// A proxy may answer with anything. Lisa may have carried out the request.
		return &TransportError{Err: fmt.Errorf("not an answer from Lisa to %s %s: %w", r.method, r.path, err)}
	}
	return nil
}

// exchange sends a request, and reads the whole answer.
func (c *Client) exchange(ctx context.Context, r request) (*http.Response, []byte, error) {
	sent, err := c.newRequest(ctx, r)
	if err != nil {
		return nil, nil, err
	}
	answer, err := c.http.Do(sent)
	if err != nil {
		var withURL *url.Error
		if errors.As(err, &withURL) {
			err = withURL.Err
		}
		return nil, nil, err
	}
	defer answer.Body.Close()
	// A few bytes of an encoding can decode to gigabytes.
	if encoding := answer.Header.Get("Content-Encoding"); encoding != "" && !strings.EqualFold(encoding, "identity") {
		return nil, nil, errors.New("the answer is compressed")
	}
	limit := maxAnswer
	if r.hasPayloads {
		limit = maxPayloads
	}
	text, err := readText(answer.Body, limit)
	return answer, text, err
}

func (c *Client) newRequest(ctx context.Context, r request) (*http.Request, error) {
	var body io.Reader = bytes.NewReader(r.content)
	if r.method == http.MethodGet {
		// Empty, but of an unknown length: the transport repeats no request with such a body on its own.
		body = io.MultiReader()
	}
	sent, err := http.NewRequestWithContext(ctx, r.method, c.urls[r.to]+r.path+r.query, body)
	if err != nil {
		return nil, err
	}
	// Otherwise, a proxy may compress the answer.
	sent.Header.Set("Accept-Encoding", "identity")
	if len(r.content) > 0 {
		sent.Header.Set("Content-Type", "application/json")
	}
	if r.key != "" {
		sent.Header.Set("Lisa-Key", r.key)
	}
	if header, value := r.condition[0], r.condition[1]; header != "" {
		sent.Header.Set(header, value)
	}
	if c.token == nil {
		return sent, nil
	}
	token, err := readToken(ctx, c.token)
	if err == nil {
		sent.Header.Set("Authorization", "Bearer "+token)
	}
	return sent, err
}

// readToken reads the token. While it is rotated, there may be none for a moment.
func readToken(ctx context.Context, source func(context.Context) (string, error)) (string, error) {
	token, err := callSource(ctx, source)
	if err != nil {
		return "", fmt.Errorf("cannot read the token: %w", err)
	}
	token = strings.TrimSpace(token)
	if !isToken(token) {
		return "", errors.New("cannot read the token: it is empty, or has invalid characters")
	}
	return token, nil
}

// callSource calls a source of tokens. It returns an error if the context ends first, or if the source panics or ends its goroutine.
func callSource(ctx context.Context, source func(context.Context) (string, error)) (string, error) {
	var token string
	err := errors.New("its source did not return")
	done := make(chan struct{})
	go func() {
		defer close(done)
		defer func() {
			if panicked := recover(); panicked != nil {
				err = fmt.Errorf("panic: %v", panicked)
			}
		}()
		token, err = source(ctx)
	}()
	select {
	case <-done:
		return token, err
	case <-ctx.Done():
		return "", ctx.Err()
	}
}

func isToken(text string) bool {
	return text != "" && strings.IndexFunc(text, func(r rune) bool { return r < '!' || r > '~' }) < 0
}

// readText reads a text up to a limit. It joins the parts at the end: a buffer that grows would take much more memory.
func readText(body io.Reader, limit int) ([]byte, error) {
	var parts [][]byte
	for size := 0; size <= limit; {
		part, err := io.ReadAll(io.LimitReader(body, maxPart))
		if err != nil {
			return nil, err
		}
		parts = append(parts, part)
		size += len(part)
		if len(part) == maxPart {
			continue
		}
		text := bytes.Join(parts, nil)
		if !utf8.Valid(text) {
			return nil, errors.New("the answer is not UTF-8")
		}
		return text, nil
	}
	return nil, fmt.Errorf("the answer is longer than %d bytes", limit)
}

// pause waits before the next try: exponential with jitter, and at least as long as the server asks for. It returns false if the
// context ended.
func pause(ctx context.Context, attempt int, after time.Duration) bool {
	wait := 8 * time.Second
	if attempt < 6 {
		wait = 125 * time.Millisecond << attempt
	}
	if wait < after {
		wait = after
	}
	// The clock is random enough, and math/rand has the same seed in each process.
	jitter := time.Duration(time.Now().UnixNano()) % (wait / 4)
	timer := time.NewTimer(wait + jitter)
	defer timer.Stop()
	select {
	case <-timer.C:
		return true
	case <-ctx.Done():
		return false
	}
}
