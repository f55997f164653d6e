package lisarelay

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"
	"time"
)

// serve returns a client of a server with this handler.
func serve(t *testing.T, handle http.HandlerFunc, options Options) *Client {
	t.Helper()
	server := httptest.NewServer(handle)
	t.Cleanup(server.Close)
	client, err := New(server.URL, options)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// relay accepts all messages, and keeps the ids of each request. A request waits until it may go.
type relay struct {
	mayGo chan struct{}

	mu      sync.Mutex
	batches [][]string
}

func (r *relay) handle(w http.ResponseWriter, request *http.Request) {
	var items []map[string]any
	body, _ := io.ReadAll(request.Body)
	if err := json.Unmarshal(body, &items); err != nil {
		panic(err)
	}
	var ids, results []string
	for _, one := range items {
		ids = append(ids, one["id"].(string))
		results = append(results, fmt.Sprintf(`{"id": %q, "outcome": "ready"}`, one["id"]))
	}
	r.mu.Lock()
	r.batches = append(r.batches, ids)
	r.mu.Unlock()
	<-r.mayGo
	fmt.Fprintf(w, "[%s]", strings.Join(results, ","))
}

func (r *relay) seen() [][]string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return append([][]string{}, r.batches...)
}

func eventually(t *testing.T, holds func() bool) {
	t.Helper()
	for end := time.Now().Add(20 * time.Second); !holds(); time.Sleep(time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("it did not happen")
		}
	}
}

func waiting(b *batcher[Sent]) int {
	b.mu.Lock()
	defer b.mu.Unlock()
	return len(b.waiting)
}

func batcherOf(c *Client, topic string) *batcher[Sent] {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.sends[topic]
}

// occupy makes two requests that do not end, so that later calls wait.
func occupy(t *testing.T, c *Client, r *relay, done *sync.WaitGroup) {
	for n := 0; n < maxInFlight; n++ {
		done.Add(1)
		go func() {
			defer done.Done()
			if _, err := c.Send(context.Background(), "t", "first", nil); err != nil {
				t.Error(err)
			}
		}()
		eventually(t, func() bool { return len(r.seen()) == n+1 })
	}
}

func TestCallsThatWaitShareARequest(t *testing.T) {
	r := &relay{mayGo: make(chan struct{})}
	c := serve(t, r.handle, Options{})
	var done sync.WaitGroup
	occupy(t, c, r, &done)
	for n := 0; n < 700; n++ {
		id := fmt.Sprint("id-", n)
		done.Add(1)
		go func() {
			defer done.Done()
			sent, err := c.Send(context.Background(), "t", "x", &SendOptions{ID: id})
			if err != nil || sent.ID != id {
				t.Errorf("%v, %v, not %v", sent, err, id)
			}
		}()
	}
	eventually(t, func() bool { return waiting(batcherOf(c, "t")) == 700 })
	close(r.mayGo)
	done.Wait()
	batches := r.seen()
	if len(batches) != 4 || len(batches[2])+len(batches[3]) != 700 || len(batches[2]) != 500 && len(batches[3]) != 500 {
		t.Error(len(batches))
	}
}

func TestACallThatIsCancelledWhileItWaitsIsNotSent(t *testing.T) {
	r := &relay{mayGo: make(chan struct{})}
	c := serve(t, r.handle, Options{})
	var done sync.WaitGroup
	occupy(t, c, r, &done)
	ctx, cancel := context.WithCancel(context.Background())
	done.Add(1)
	go func() {
		defer done.Done()
		_, err := c.Send(ctx, "t", "x", &SendOptions{ID: "cancelled"})
		var failure Error
		if !errors.Is(err, context.Canceled) || !errors.As(err, &failure) || failure.MessageID() != "cancelled" {
			t.Errorf("%#v", err)
		}
		close(r.mayGo)
	}()
	eventually(t, func() bool { return waiting(batcherOf(c, "t")) == 1 })
	cancel()
	done.Wait()
	if _, err := c.Send(context.Background(), "t", "x", &SendOptions{ID: "later"}); err != nil {
		t.Error(err)
	}
	if batches := r.seen(); len(batches) != 3 || batches[2][0] != "later" {
		t.Error(batches)
	}
}

func TestACallThatIsCancelledInFlightEndsAlone(t *testing.T) {
	r := &relay{mayGo: make(chan struct{})}
	c := serve(t, r.handle, Options{})
	ctx, cancel := context.WithCancel(context.Background())
	left, stayed := make(chan error, 1), make(chan error, 1)
	var done sync.WaitGroup
	occupy(t, c, r, &done)
	send := func(ctx context.Context, ended chan error) {
		_, err := c.Send(ctx, "t", "x", nil)
		ended <- err
	}
	go send(ctx, left)
	go send(context.Background(), stayed)
	eventually(t, func() bool { return waiting(batcherOf(c, "t")) == 2 })
	r.mayGo <- struct{}{}
	eventually(t, func() bool { return len(r.seen()) == 3 })
	cancel()
	if err := <-left; !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	close(r.mayGo)
	if err := <-stayed; err != nil {
		t.Error(err)
	}
	done.Wait()
}

func TestEachCallOfARefusedRequestHasAnErrorOfItsOwn(t *testing.T) {
	mayGo := make(chan struct{})
	c := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		<-mayGo
		w.WriteHeader(http.StatusUnauthorized)
		io.WriteString(w, `{"code": "unauthorized"}`)
	}, Options{})
	failures := make(chan *Problem)
	for n := 0; n < 10; n++ {
		id := fmt.Sprint("id-", n)
		go func() {
			_, err := c.Send(context.Background(), "t", "x", &SendOptions{ID: id})
			var problem *Problem
			if !errors.As(err, &problem) || problem.ID != id || problem.Retryable() {
				t.Errorf("%#v", err)
			}
			failures <- problem
		}()
	}
	eventually(t, func() bool { return batcherOf(c, "t") != nil })
	close(mayGo)
	distinct := map[*Problem]bool{}
	for n := 0; n < 10; n++ {
		distinct[<-failures] = true
	}
	if len(distinct) != 10 {
		t.Error(len(distinct))
	}
}

func TestSendManyEndsWithItsContext(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	r := &relay{mayGo: make(chan struct{})}
	c := serve(t, func(w http.ResponseWriter, request *http.Request) {
		if len(r.seen()) == 1 {
			io.ReadAll(request.Body)
			cancel()
			<-request.Context().Done()
			return
		}
		r.handle(w, request)
	}, Options{})
	close(r.mayGo)
	results, err := c.SendMany(ctx, "t", make([]NewMessage, 1200))
	if err != nil || len(results) != 1200 {
		t.Fatal(err, len(results))
	}
	for n, result := range results {
		if errors.Is(result.Err, context.Canceled) != (n >= 500) {
			t.Fatal(n, result)
		}
	}
}

func TestIDsAreUniqueAndInOrder(t *testing.T) {
	ids, last := map[string]bool{}, ""
	for n := 0; n < 10_000; n++ {
		id := newID()
		ids[id] = true
		if len(id) != 36 || id[14] != '7' || !strings.ContainsRune("89ab", rune(id[19])) || id[:13] < last {
			t.Fatal(id, last)
		}
		last = id[:13]
	}
	if len(ids) != 10_000 {
		t.Error(len(ids))
	}
}

func TestOnlyBatchersInUseAreKept(t *testing.T) {
	r := &relay{mayGo: make(chan struct{})}
	c := serve(t, r.handle, Options{})
	var done sync.WaitGroup
	occupy(t, c, r, &done)
	busy := batcherOf(c, "t")
	ctx, cancel := context.WithCancel(context.Background())
	cancel()
	for n := 0; n < 100; n++ {
		topic := fmt.Sprint("topic-", n)
		if _, err := c.Send(ctx, topic, "x", nil); !errors.Is(err, context.Canceled) {
			t.Error(err)
		}
	}
	if len(c.sends) != 2 || batcherOf(c, "t") != busy {
		t.Error(c.sends)
	}
	close(r.mayGo)
	done.Wait()
	for n := 0; n < 100; n++ {
		topic := fmt.Sprint("t", n%20)
		done.Add(1)
		go func() {
			defer done.Done()
			if _, err := c.Send(context.Background(), topic, "x", nil); err != nil {
				t.Error(err)
			}
		}()
	}
	done.Wait()
	eventually(t, busy.isIdle)
}

func TestAnAckIsJSONWithAnyToken(t *testing.T) {
	for _, token := range []string{"abc.DEF-_~", `quote " and \`, "line\n", "größe", "\x7f"} {
		one, err := Ack().item(token)
		if err != nil {
			t.Fatal(err)
		}
		var read struct {
			Token string
			Ack   bool
		}
		if err := json.Unmarshal(one.text, &read); err != nil || read.Token != token || !read.Ack {
			t.Errorf("%s: %v, %v", one.text, read, err)
		}
	}
	if _, err := Ack().item(""); err == nil {
		t.Error("an empty token is not refused")
	}
}
