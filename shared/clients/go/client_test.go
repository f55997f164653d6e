package lisarelay

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
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
	_, noOutcome := c.Settle(ctx, "token", Outcome{})
	_, noToken := c.Extend(ctx, "", 0)
	_, noURL := New("localhost:7812", Options{})
	_, password := New("http://user:password@localhost", Options{})
	_, wrongToken := New("http://localhost", Options{Token: "two words", Timeout: -1, Tries: -1})
	for n, err := range []error{noTopic, parent, noJSON, negative, noText, farAway, second, noID, lines, never, noOutcome, noToken, noURL, password, wrongToken} {
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
	ctx, cancel := context.WithCancel(context.Background())
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Retry-After", "99999999999999")
		w.WriteHeader(http.StatusServiceUnavailable)
		time.AfterFunc(50*time.Millisecond, cancel)
	}, Options{})
	if _, err := c.Get(ctx, "t", "i"); !errors.Is(err, context.Canceled) || !strings.Contains(err.Error(), "503") {
		t.Error(err)
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
