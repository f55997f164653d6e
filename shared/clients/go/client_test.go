package lisarelay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

func TestWrongArgumentsAreErrorsBeforeARequest(t *testing.T) {
	ctx := context.Background()
	c := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("a request") }, Options{})
	_, noTopic := c.Send(ctx, "", "x", nil)
	_, parent := c.Send(ctx, "..", "x", nil)
	_, noJSON := c.Send(ctx, "t", make(chan int), nil)
	_, negative := c.Send(ctx, "t", "x", &SendOptions{Delay: -1})
	_, noText := c.Send(ctx, "t", "x", &SendOptions{Key: "\xff"})
	_, farAway := c.Send(ctx, "t", "x", &SendOptions{DeliverAt: time.Unix(1<<50, 0)})
	_, second := c.SendMany(ctx, "t", []NewMessage{{Payload: 1}, {Payload: func() {}}})
	_, noID := c.Get(ctx, "t", "")
	_, lines := c.Get(ctx, "t", "id", WithKey("a\r\nb"))
	_, never := c.RescheduleAt(ctx, "t", "id", time.Time{})
	_, noKey := c.CancelKey(ctx, "t", "")
	_, newline := c.CancelKey(ctx, "t", "a\nb")
	_, backwards := c.RescheduleKey(ctx, "t", "k", -1)
	_, notEver := c.RescheduleKeyAt(ctx, "t", "k", time.Time{})
	_, noQuery := c.List(ctx, "t", ListOptions{Key: "\xff"})
	_, noGroup := c.Requeue(ctx, "t", "", []string{"id"})
	_, noIDs := c.Requeue(ctx, "t", "default", nil)
	_, emptyID := c.Requeue(ctx, "t", "default", []string{"id", ""})
	_, noOutcome := c.Settle(ctx, "token", Outcome{})
	_, noToken := c.Extend(ctx, "", 0)
	_, noURL := New("localhost:7812", Options{})
	_, noManager := New("http://localhost", Options{Manager: "localhost:7812"})
	_, password := New("http://user:password@localhost", Options{})
	_, wrongToken := New("http://localhost", Options{Token: "two words", Timeout: -1, Tries: -1})
	for n, err := range []error{noTopic, parent, noJSON, negative, noText, farAway, second, noID, lines, never, noKey, newline,
		backwards, notEver, noQuery, noGroup, noIDs, emptyID, noOutcome, noToken, noURL, noManager, password, wrongToken} {
		var argument *ArgumentError
		if !errors.As(err, &argument) || strings.Contains(err.Error(), "password") || strings.Contains(err.Error(), "two words") {
			t.Errorf("%d: %v", n, err)
		}
	}
}

func TestPayloadsAreSentUnchanged(t *testing.T) {
	for _, one := range []struct {
		payload  any
		expected string
	}{
		{"añ <b>", `"headers":{"content-type":"text/plain; charset=utf-8"},"id":"i","payload_text":"añ <b>"`},
		{[]byte("añ"), `"headers":{"content-type":"application/octet-stream"},"id":"i","payload_text":"añ"`},
		{[]byte{0, 255}, `"headers":{"content-type":"application/octet-stream"},"id":"i","payload_base64":"AP8="`},
		{map[string]any{"a": "<"}, `"headers":{"content-type":"application/json"},"id":"i","payload":{"a":"<"}`},
		{nil, `"headers":{"content-type":"application/json"},"id":"i","payload":null`},
	} {
		made, err := newItem(one.payload, SendOptions{ID: "i"})
		if err != nil || string(made.text) != "{"+one.expected+"}" {
			t.Error(string(made.text), err)
		}
	}
	made, err := newItem("x", SendOptions{ID: "i", TTL: 1, Delay: 1500 * time.Microsecond, Headers: map[string]string{"Content-Type": "a/b"}})
	if expected := `{"delay":"2ms","headers":{"Content-Type":"a/b"},"id":"i","payload_text":"x","ttl":"1ms"}`; err != nil || string(made.text) != expected {
		t.Error(string(made.text), err)
	}
}

func TestAMessageIsRescheduledByATimeOrADelay(t *testing.T) {
	ctx, requests := context.Background(), make(chan string, 1)
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		body, _ := io.ReadAll(r.Body)
		requests <- fmt.Sprint(r.Method, " ", r.URL.EscapedPath(), " ", string(body), " ", r.Header.Get("Lisa-Key"))
		io.WriteString(w, `{"id": "i", "outcome": "rescheduled", "due_at": null}`)
	}, Options{})
	for expected, call := range map[string]func() error{
		`PATCH /v1/topics/t/messages/a%2Fb {"deliver_at":"2026-01-02T03:04:05.006Z"} straße`: func() error {
			_, err := c.RescheduleAt(ctx, "t", "a/b", time.Date(2026, 1, 2, 3, 4, 5, 6_000_000, time.UTC), WithKey("straße"))
			return err
		},
		`PATCH /v1/topics/t/messages/i {"delay":"60000ms"} `: func() error {
			_, err := c.Reschedule(ctx, "t", "i", time.Minute)
			return err
		},
		`PATCH /v1/topics/t/messages/i {"delay":"0ms"} `: func() error {
			_, err := c.Reschedule(ctx, "t", "i", 0)
			return err
		},
	} {
		if err := call(); err != nil {
			t.Error(err)
		}
		if request := <-requests; request != expected {
			t.Error(request, expected)
		}
	}
}

func TestAPageHasNoMoreMessagesThanItsLimit(t *testing.T) {
	queries := make(chan string, 1)
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		queries <- r.URL.RawQuery
		io.WriteString(w, `{"messages": [{"id": "a", "state": "waiting"}, {"id": "b", "state": "waiting"}], "next": null}`)
	}, Options{Tries: 1})
	options := ListOptions{Key: "straße 7&", From: time.Date(2026, 1, 2, 3, 4, 5, 6_000_000, time.FixedZone("", 3600)), Limit: 2}
	page, err := c.List(context.Background(), "t", options)
	if err != nil || len(page.Messages) != 2 || page.Messages[1].ID != "b" || page.Next != "" {
		t.Error(page, err)
	}
	if query := <-queries; query != "from=2026-01-02T02%3A04%3A05.006Z&key=stra%C3%9Fe+7%26&limit=2" {
		t.Error(query)
	}
	options.Limit = 1
	var failure *TransportError
	if _, err := c.List(context.Background(), "t", options); !errors.As(err, &failure) || strings.Contains(err.Error(), "stra") {
		t.Error(err)
	}
}

func TestTheEndOfAPullClosesItsConnection(t *testing.T) {
	pulled, left := make(chan struct{}), make(chan struct{})
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		io.ReadAll(r.Body)
		close(pulled)
		<-r.Context().Done()
		close(left)
	}, Options{})
	ctx, cancel := context.WithCancel(context.Background())
	go func() {
		<-pulled
		cancel()
	}()
	if _, err := c.Pull(ctx, "t", PullOptions{Wait: 20 * time.Second}); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	<-left
}

func TestATryIsOneRequest(t *testing.T) {
	var requests int32
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if atomic.AddInt32(&requests, 1) == 1 {
			io.WriteString(w, `{"id": "i", "state": "ready", "payload": "x"}`)
			return
		}
		// Ends the connection, which has been used before.
		panic(http.ErrAbortHandler)
	}, Options{Tries: 1})
	if found, err := c.Get(context.Background(), "t", "i"); err != nil || string(found.Payload) != "x" {
		t.Error(found, err)
	}
	if _, err := c.Get(context.Background(), "t", "i"); err == nil || atomic.LoadInt32(&requests) != 2 {
		t.Error(err, atomic.LoadInt32(&requests))
	}
}

func TestTheEndOfAContextEndsTheTries(t *testing.T) {
	for request, call := range map[string]func(context.Context, *Client) error{
		"GET /v1/topics/t/messages/i": func(ctx context.Context, c *Client) error {
			_, err := c.Get(ctx, "t", "i")
			return err
		},
		"POST /v1/topics/t/messages:batch": func(ctx context.Context, c *Client) error {
			_, err := c.Send(ctx, "t", "x", nil)
			return err
		},
		"POST /v1/deliveries:settle": func(ctx context.Context, c *Client) error {
			results, err := c.SettleMany(ctx, []Settlement{{"secret", Ack()}})
			if err != nil {
				return err
			}
			return results[0].Err
		},
	} {
		ctx, cancel := context.WithCancel(context.Background())
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Retry-After", "99999999999999")
			w.WriteHeader(http.StatusServiceUnavailable)
			time.AfterFunc(50*time.Millisecond, cancel)
		}, Options{})
		if err := call(ctx, c); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), request) || !strings.Contains(err.Error(), "503") {
			t.Error(request, err)
		}
	}
}

func TestATokenIsReadForEachRequest(t *testing.T) {
	file := filepath.Join(t.TempDir(), "token")
	c := serve(t, func(w http.ResponseWriter, r *http.Request) {
		fmt.Fprintf(w, `{"id": %q, "outcome": "rescheduled"}`, r.Header.Get("Authorization"))
	}, Options{TokenSource: TokenFile(file), Tries: 1})
	var failure *TransportError
	if _, err := c.DeliverNow(context.Background(), "t", "i"); !errors.As(err, &failure) || !failure.Retryable() {
		t.Error(err)
	}
	for _, token := range []string{"one", "two"} {
		if err := os.WriteFile(file, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
		if answer, err := c.DeliverNow(context.Background(), "t", "i"); err != nil || answer.ID != "Bearer "+token {
			t.Error(answer, err)
		}
	}
}

func TestOnlyASecureURLUsesAProxy(t *testing.T) {
	for text, expected := range map[string]bool{"http://lisa.example": false, "https://lisa.example": true} {
		t.Setenv("HTTP_PROXY", "http://proxy.example")
		t.Setenv("HTTPS_PROXY", "http://proxy.example")
		request := httptest.NewRequest("GET", text, nil)
		if proxy, err := secureProxy(request); err != nil || (proxy != nil) != expected {
			t.Error(text, proxy, err)
		}
	}
}

func TestATokenSourceCannotDelayOrEndOtherCalls(t *testing.T) {
	blocked := make(chan struct{})
	defer close(blocked)
	for name, source := range map[string]func(context.Context) (string, error){
		"blocks": func(context.Context) (string, error) { <-blocked; return "x", nil },
		"panics": func(context.Context) (string, error) { panic("oops") },
		"ends":   func(context.Context) (string, error) { runtime.Goexit(); return "x", nil },
	} {
		source := source
		var calls int32
		c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
			io.WriteString(w, `[{"id": "i", "outcome": "ready"}]`)
		}, Options{Timeout: 500 * time.Millisecond, Tries: 1, TokenSource: func(ctx context.Context) (string, error) {
			if atomic.AddInt32(&calls, 1) <= 2*maxInFlight {
				return source(ctx)
			}
			return "x", nil
		}})
		for n := 0; n < 2*maxInFlight; n++ {
			var failure *TransportError
			_, err := c.Send(context.Background(), "t", "x", &SendOptions{ID: "i"})
			if !errors.As(err, &failure) || failure.ID != "i" || !strings.Contains(err.Error(), "cannot read the token") {
				t.Error(name, err)
			}
		}
		if _, err := c.Send(context.Background(), "t", "x", nil); err != nil {
			t.Error(name, err)
		}
	}
}

type endingTransport struct{ requests int32 }

func (e *endingTransport) RoundTrip(*http.Request) (*http.Response, error) {
	if atomic.AddInt32(&e.requests, 1) <= 2*maxInFlight {
		runtime.Goexit()
	}
	return nil, errors.New("the last one")
}

func TestATransportCannotEndABatcher(t *testing.T) {
	c, err := New("http://localhost", Options{Tries: 1, Transport: &endingTransport{}})
	if err != nil {
		t.Fatal(err)
	}
	for n := 0; n <= 2*maxInFlight; n++ {
		var failure *TransportError
		_, err := c.Send(context.Background(), "t", "x", nil)
		if !errors.As(err, &failure) || strings.Contains(err.Error(), "the last one") != (n == 2*maxInFlight) {
			t.Error(n, err)
		}
	}
}

func TestMoreDeliveriesThanRequestedAreNoAnswer(t *testing.T) {
	delivery := `{"id": "i", "token": "k", "lease_until": "2030-01-01T00:00:00Z"}`
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		fmt.Fprintf(w, `{"deliveries": [%s, %s]}`, delivery, delivery)
	}, Options{})
	var failure *TransportError
	if _, err := c.Pull(context.Background(), "t", PullOptions{}); !errors.As(err, &failure) || !strings.Contains(err.Error(), "not an answer from Lisa") {
		t.Error(err)
	}
	if deliveries, err := c.Pull(context.Background(), "t", PullOptions{Max: 2}); err != nil || len(deliveries) != 2 || deliveries[1].Token != "k" {
		t.Error(deliveries, err)
	}
}

func TestOnlyAsManyItemsAsRequestedAreDecoded(t *testing.T) {
	many := strings.Repeat(`{},`, 1<<20) + `{}`
	for name, read := range map[string]func() error{
		"deliveries": func() error {
			_, err := new(Client).readDeliveries([]byte(`{"deliveries": [`+many+`]}`), PullOptions{Max: 200})
			return err
		},
		"messages": func() error {
			_, err := readPage([]byte(`{"messages": [`+many+`]}`), maxPage)
			return err
		},
		"deliveries with results": func() error {
			_, _, err := new(Client).readSettledAndPulled([]byte(`{"results": [], "deliveries": [`+many+`]}`), 1, PullOptions{Max: 200})
			return err
		},
		"results with deliveries": func() error {
			_, _, err := new(Client).readSettledAndPulled([]byte(`{"results": [`+many+`], "deliveries": []}`), maxItems, PullOptions{Max: 200})
			return err
		},
		"results": func() error {
			_, err := readResults[Sent]([]byte("["+many+"]"), maxItems)
			return err
		},
	} {
		var before, after runtime.MemStats
		runtime.ReadMemStats(&before)
		err := read()
		runtime.ReadMemStats(&after)
		// The text has 3 MiB, and is joined twice.
		if used := after.TotalAlloc - before.TotalAlloc; err == nil || used > 10<<20 {
			t.Error(name, used, err)
		}
	}
	for _, text := range []string{`{}`, `{"deliveries": null}`, `{"deliveries": {}}`, `[]`, `{"deliveries": [1]}`} {
		if _, err := new(Client).readDeliveries([]byte(text), PullOptions{Max: 1}); err == nil {
			t.Error(text)
		}
	}
}

func TestTextThatWouldBeLongerThanBase64IsSentAsBase64(t *testing.T) {
	for text, isText := range map[string]bool{"": true, "x": true, "añ\n": true, strings.Repeat("line\n", 9): true, "\x00\x01\x02": false,
		strings.Repeat("\u2028", 9): false, strings.Repeat("\"", 9): false, strings.Repeat("\x00", 256<<10): false} {
		for _, payload := range []any{text, []byte(text)} {
			made, err := newItem(payload, SendOptions{})
			if err != nil || strings.Contains(string(made.text), `"payload_text"`) != isText || len(made.text) > 200+len(text)*3/2 {
				t.Errorf("%.20q: %.200s, %v", text, made.text, err)
			}
		}
		if encoded, err := (&body{fields: map[string]any{"": text}}).json(); err != nil || len(encoded) != jsonLength([]byte(text))+len(`{"":}`) {
			t.Errorf("%.20q: %d, %d, %v", text, len(encoded), jsonLength([]byte(text)), err)
		}
	}
}

func TestSecretsAreNotPrinted(t *testing.T) {
	delivery := &Delivery{ID: "i", Token: "secret", Attempt: 1}
	for _, value := range []any{Options{Token: "secret"}, &Options{Token: "secret"}, Settlement{"secret", Ack()}, &Settlement{"secret", Ack()},
		[]Settlement{{"secret", Ack()}}, delivery, []*Delivery{delivery}} {
		text, _ := json.Marshal(delivery)
		if printed := fmt.Sprintf("%v %+v %#v %s %s", value, value, value, value, text); strings.Contains(printed, "secret") {
			t.Error(printed)
		}
	}
}
