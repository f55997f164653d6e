package lisarelay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"runtime"
	"strings"
	"sync"
	"testing"
	"time"
)

// gateway delivers one message, and keeps its outcome.
type gateway struct {
	// The answer to an extension.
	extension string

	mu       sync.Mutex
	isPulled bool
	outcome  map[string]any
	log      string
}

func (g *gateway) logged() string {
	g.mu.Lock()
	defer g.mu.Unlock()
	return g.log
}

func (g *gateway) handle(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	switch {
	case strings.HasSuffix(r.URL.Path, "/pull"):
		g.pull(w, r)
	case strings.HasSuffix(r.URL.Path, ":extend"):
		fmt.Fprintf(w, "[%s]", g.extension)
	default:
		var items []map[string]any
		if err := json.Unmarshal(body, &items); err != nil {
			panic(err)
		}
		g.mu.Lock()
		g.outcome = items[0]
		g.mu.Unlock()
		io.WriteString(w, `[{"outcome": "acked"}]`)
	}
}

func (g *gateway) pull(w http.ResponseWriter, r *http.Request) {
	g.mu.Lock()
	isFirst := !g.isPulled
	g.isPulled = true
	g.mu.Unlock()
	if !isFirst {
		<-r.Context().Done()
		return
	}
	io.WriteString(w, `{"deliveries": [{"id": "one", "token": "secret", "attempt": 1, "max_attempts": 3,
		"due_at": "2026-01-01T00:00:00Z", "lease_until": "2026-01-01T00:01:00Z", "headers": {}, "payload": "7"}]}`)
}

// work runs a worker that handles one message, and returns its outcome and what was logged.
func (g *gateway) work(t *testing.T, handle Handler) (outcome map[string]any, logged string) {
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	options := WorkOptions{Lease: minLease, Log: func(text string, err error) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.log += fmt.Sprintln(text, err)
	}}
	err := serve(t, g.handle, Options{}).Work(ctx, "t", func(ctx context.Context, d *Delivery) error {
		stop()
		return handle(ctx, d)
	}, options)
	if err != nil {
		t.Error(err)
	}
	return g.outcome, g.logged()
}

type brokenError struct{ cause error }

func (e *brokenError) Error() string { return e.cause.Error() }
func (e *brokenError) Unwrap() error { return e.cause }

func TestWhatAHandlerReturns(t *testing.T) {
	var nilError *brokenError
	for name, one := range map[string]struct {
		handle   Handler
		expected string
	}{
		"nil":              {func(context.Context, *Delivery) error { return nil }, `{"ack":true}`},
		"an error":         {func(context.Context, *Delivery) error { return errors.New("no <luck>") }, `{"retry":{"error":"no <luck>"}}`},
		"an outcome":       {func(context.Context, *Delivery) error { return Reject(errors.New("bad")) }, `{"reject":{"error":"bad"}}`},
		"a wrapped one":    {func(context.Context, *Delivery) error { return fmt.Errorf("later: %w", Defer(time.Second)) }, `{"defer":{"after":"1000ms"}}`},
		"defer to now":     {func(context.Context, *Delivery) error { return Defer(0) }, `{"defer":{"after":"0ms"}}`},
		"no outcome":       {func(context.Context, *Delivery) error { return Outcome{} }, `wrong outcome`},
		"a negative time":  {func(context.Context, *Delivery) error { return Retry(-1, nil) }, `wrong outcome`},
		"a long error":     {func(context.Context, *Delivery) error { return errors.New(strings.Repeat("é", 600) + "\xff") }, strings.Repeat("é", 512) + `"`},
		"a panic":          {func(context.Context, *Delivery) error { panic("oops") }, `{"retry":{"error":"panic: oops"}}`},
		"a nil panic":      {func(context.Context, *Delivery) error { panic(nil) }, `the handler did not return`},
		"an end":           {func(context.Context, *Delivery) error { runtime.Goexit(); return nil }, `the handler did not return`},
		"a panic later on": {func(context.Context, *Delivery) error { return nilError }, `nil pointer dereference`},
	} {
		outcome, logged := new(gateway).work(t, one.handle)
		if outcome["token"] != "secret" || strings.Contains(logged, "secret") {
			t.Error(name, outcome, logged)
		}
		delete(outcome, "token")
		var text strings.Builder
		encoder := json.NewEncoder(&text)
		encoder.SetEscapeHTML(false)
		if err := encoder.Encode(outcome); err != nil || !strings.Contains(text.String(), one.expected) {
			t.Error(name, text.String(), err)
		}
	}
}

func TestAHandlerMaySettleItsDelivery(t *testing.T) {
	outcome, _ := new(gateway).work(t, func(ctx context.Context, d *Delivery) error {
		var payload int
		if err := d.JSON(&payload); err != nil || payload != 7 {
			t.Error(payload, err)
		}
		_, err := d.Defer(ctx, time.Hour)
		return err
	})
	if outcome["defer"] == nil {
		t.Error(outcome)
	}
}

func TestAStopDoesNotEndTheContextOfAHandler(t *testing.T) {
	outcome, _ := (&gateway{extension: `{"outcome": "extended", "lease_until": "2026-01-01T00:02:00Z"}`}).work(t, func(ctx context.Context, d *Delivery) error {
		eventually(t, func() bool { return d.LeaseUntil().Minute() == 2 })
		return ctx.Err()
	})
	if outcome["ack"] != true {
		t.Error(outcome)
	}
}

func TestALostLeaseEndsTheContextOfAHandler(t *testing.T) {
	outcome, logged := (&gateway{extension: `{"error": {"status": 409, "code": "stale"}}`}).work(t, func(ctx context.Context, d *Delivery) error {
		<-ctx.Done()
		return ctx.Err()
	})
	if outcome != nil || strings.Count(logged, "\n") != 1 || !strings.Contains(logged, "the lease of attempt 1 of one was lost") {
		t.Error(outcome, logged)
	}
}

func TestAFailedExtensionDoesNotEndAHandler(t *testing.T) {
	g := &gateway{extension: `{"error": {"status": 422, "code": "invalid"}}`}
	outcome, _ := g.work(t, func(ctx context.Context, d *Delivery) error {
		eventually(t, func() bool { return strings.Contains(g.logged(), "cannot extend the lease") })
		return ctx.Err()
	})
	if outcome["ack"] != true {
		t.Error(outcome)
	}
}

func TestAllWrongArgumentsAreOneError(t *testing.T) {
	c := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("a request") }, Options{})
	err := c.Work(context.Background(), "a b", nil, WorkOptions{Group: "A", Concurrency: -1, Lease: 1, Consumer: strings.Repeat("x", 101)})
	var argument *ArgumentError
	if !errors.As(err, &argument) {
		t.Fatal(err)
	}
	for _, name := range []string{"topic", "handler", "Group", "Concurrency", "Lease", "Consumer"} {
		if !strings.Contains(err.Error(), name+": ") {
			t.Error(name, err)
		}
	}
	_, err = c.Get(context.Background(), "", "")
	if !errors.As(err, &argument) || !strings.Contains(err.Error(), "topic: ") || !strings.Contains(err.Error(), "id: ") {
		t.Error(err)
	}
}
