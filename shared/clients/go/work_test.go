package lisarelay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"reflect"
	"runtime"
	"strings"
	"sync"
	"sync/atomic"
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

// keyed is a gateway with one pull of messages of a key, one of whose leases is lost.
type keyed struct {
	// The call that finds it out, and the message.
	verb, lost string

	pulls   int32
	mu      sync.Mutex
	settled map[string]string
}

func (k *keyed) handle(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	if strings.HasSuffix(r.URL.Path, "/pull") {
		if atomic.AddInt32(&k.pulls, 1) > 1 {
			<-r.Context().Done()
			return
		}
		deliveries := make([]string, 4)
		for id := range deliveries {
			deliveries[id] = fmt.Sprintf(`{"id": "%d", "token": "%d", "key": "k", "lease_until": "2026-01-01T00:01:00Z"}`, id, id)
		}
		fmt.Fprintf(w, `{"deliveries": [%s]}`, strings.Join(deliveries, ","))
		return
	}
	k.mu.Lock()
	defer k.mu.Unlock()
	var items []map[string]any
	if err := json.Unmarshal(body, &items); err != nil {
		panic(err)
	}
	results := []string{}
	for _, one := range items {
		token := one["token"].(string)
		result := acked
		if strings.HasSuffix(r.URL.Path, k.verb) && token == k.lost {
			result = `{"error": {"status": 409, "code": "stale"}}`
		}
		results = append(results, result)
		if strings.HasSuffix(r.URL.Path, "settle") {
			delete(one, "token")
			k.settled[token] = fmt.Sprint(one)
		}
	}
	fmt.Fprintf(w, "[%s]", strings.Join(results, ","))
}

func (k *keyed) count() int {
	k.mu.Lock()
	defer k.mu.Unlock()
	return len(k.settled)
}

func TestThoseBehindALostLeaseAreHandedBack(t *testing.T) {
	const ack, back = "map[ack:true]", "map[defer:map[after:0ms]]"
	for verb, one := range map[string]struct {
		// A message that waits, or one that was handled.
		lost     string
		handled  []string
		expected map[string]string
	}{
		"extend": {"1", []string{"0"}, map[string]string{"0": ack, "2": back, "3": back}},
		"settle": {"0", []string{"0", "1"}, map[string]string{"0": ack, "1": ack, "2": back, "3": back}},
	} {
		ctx, stop := context.WithCancel(context.Background())
		k := &keyed{verb: verb, lost: one.lost, settled: map[string]string{}}
		isLost := make(chan struct{})
		options := WorkOptions{Concurrency: 3, MaxPerKey: 4, Lease: minLease, Log: func(text string, err error) {
			if !strings.Contains(text, "the lease of attempt 0 of "+one.lost+" was lost") {
				t.Error(text, err)
			}
			close(isLost)
		}}
		var handled []string
		go func() {
			eventually(t, func() bool { return k.count() == len(one.expected) })
			stop()
		}()
		err := serve(t, k.handle, Options{}).Work(ctx, "t", func(_ context.Context, d *Delivery) error {
			handled = append(handled, d.ID)
			if (verb == "settle") == (d.ID == "1") {
				<-isLost
			}
			return nil
		}, options)
		if err != nil || !reflect.DeepEqual(handled, one.handled) || !reflect.DeepEqual(k.settled, one.expected) {
			t.Error(verb, err, handled, k.settled)
		}
		stop()
	}
}

func TestAPullOfAWorkerIsForItsHandlers(t *testing.T) {
	w := worker{options: WorkOptions{Group: "g", Concurrency: 50, MaxPerKey: 10, Lease: minLease}}
	for runs, expected := range map[int][3]int{1: {10, 10, 1}, 20: {200, 10, 20}, 50: {200, 10, 50}} {
		if o := w.pullOptions(runs); [3]int{o.Max, o.MaxPerKey, o.MaxKeys} != expected {
			t.Error(runs, o)
		}
	}
	w.options.MaxPerKey = 1
	if o := w.pullOptions(50); o.Max != 50 || o.MaxPerKey != 0 || o.MaxKeys != 0 {
		t.Error(o)
	}
}

func TestAllWrongArgumentsAreOneError(t *testing.T) {
	c := serve(t, func(http.ResponseWriter, *http.Request) { t.Error("a request") }, Options{})
	err := c.Work(context.Background(), "a b", nil, WorkOptions{Group: "A", Concurrency: -1, MaxPerKey: 201, Lease: 1, Consumer: strings.Repeat("x", 101)})
	var argument *ArgumentError
	if !errors.As(err, &argument) {
		t.Fatal(err)
	}
	for _, name := range []string{"topic", "handler", "Group", "Concurrency", "MaxPerKey", "Lease", "Consumer"} {
		if !strings.Contains(err.Error(), name+": ") {
			t.Error(name, err)
		}
	}
	_, err = c.Get(context.Background(), "", "")
	if !errors.As(err, &argument) || !strings.Contains(err.Error(), "topic: ") || !strings.Contains(err.Error(), "id: ") {
		t.Error(err)
	}
}
