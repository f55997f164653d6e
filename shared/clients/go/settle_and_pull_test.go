package lisarelay

import (
	"context"
	"fmt"
	"io"
	"net/http"
	urls "path"
	"reflect"
	"sync/atomic"
	"testing"
)

const acked = `{"outcome": "acked"}`

// busy is a gateway with a message for each pull, and these answers to a request that settles and pulls.
type busy struct {
	answer func(w http.ResponseWriter, delivery string)

	pulled   int32
	requests chan string
}

func (b *busy) handle(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	name := urls.Base(r.URL.Path)
	if name == "pull" {
		body = nil
	}
	b.requests <- fmt.Sprint(name, " ", r.URL.RawQuery, string(body))
	switch name {
	case "pull":
		fmt.Fprintf(w, `{"deliveries": [%s]}`, b.delivery())
	case "settle-and-pull":
		b.answer(w, b.delivery())
	default:
		fmt.Fprintf(w, "[%s]", acked)
	}
}

func (b *busy) delivery() string {
	id := atomic.AddInt32(&b.pulled, 1)
	return fmt.Sprintf(`{"id": "%d", "token": "t%d", "lease_until": "2030-01-01T00:00:00Z"}`, id, id)
}

// work runs a worker that stops while it handles a message. It returns the messages that were handled, and the requests.
func (b *busy) work(t *testing.T, stopAt string, options WorkOptions) (handled, requests []string) {
	t.Helper()
	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	b.requests = make(chan string, 100)
	if options.Log == nil {
		options.Log = func(text string, err error) { t.Error(text, err) }
	}
	err := serve(t, func(w http.ResponseWriter, r *http.Request) {
		if urls.Base(r.URL.Path) == stopAt {
			stop()
		}
		b.handle(w, r)
	}, Options{}).Work(ctx, "t", func(_ context.Context, d *Delivery) error {
		handled = append(handled, d.ID)
		if d.ID == stopAt {
			stop()
		}
		return nil
	}, options)
	if err != nil {
		t.Error(err)
	}
	for close(b.requests); len(b.requests) > 0; {
		requests = append(requests, <-b.requests)
	}
	return handled, requests
}

func settledAndPulled(w http.ResponseWriter, delivery string) {
	fmt.Fprintf(w, `{"results": [%s], "deliveries": [%s]}`, acked, delivery)
}

func TestWhileMessagesAreReadyOutcomesAreSentWithAPull(t *testing.T) {
	handled, requests := (&busy{answer: settledAndPulled}).work(t, "3", WorkOptions{Lease: minLease, Consumer: "a&b"})
	expected := []string{
		`pull `,
		`settle-and-pull consumer=a%26b&lease=1000ms&max=1[{"token":"t1","ack":true}]`,
		`settle-and-pull consumer=a%26b&lease=1000ms&max=1[{"token":"t2","ack":true}]`,
		`deliveries:settle [{"token":"t3","ack":true}]`,
	}
	if len(handled) != 3 || !reflect.DeepEqual(requests, expected) {
		t.Error(handled, requests)
	}
}

func TestOutcomesAreSentAgainAfterASettleAndPullThatFailed(t *testing.T) {
	for name, answer := range map[string]func(http.ResponseWriter, string){
		"unknown":     func(w http.ResponseWriter, _ string) { w.WriteHeader(http.StatusNotFound) },
		"unavailable": func(w http.ResponseWriter, _ string) { w.WriteHeader(http.StatusServiceUnavailable) },
		"lost":        func(http.ResponseWriter, string) { panic(http.ErrAbortHandler) },
		"too many":    func(w http.ResponseWriter, delivery string) { settledAndPulled(w, delivery+","+delivery) },
		"no results":  func(w http.ResponseWriter, delivery string) { fmt.Fprintf(w, `{"deliveries": [%s]}`, delivery) },
	} {
		// The message of the failed pull is delivered again after its lease.
		var logged []string
		options := WorkOptions{Log: func(text string, _ error) { logged = append(logged, text) }}
		handled, requests := (&busy{answer: answer}).work(t, "3", options)
		if isRefused := name == "unknown"; (len(logged) == 1) != isRefused {
			t.Error(name, logged)
		}
		expected := []string{
			`pull `,
			`settle-and-pull lease=60000ms&max=1[{"token":"t1","ack":true}]`,
			`deliveries:settle [{"token":"t1","ack":true}]`,
			`pull `,
			`deliveries:settle [{"token":"t3","ack":true}]`,
		}
		if !reflect.DeepEqual(handled, []string{"1", "3"}) || !reflect.DeepEqual(requests, expected) {
			t.Error(name, handled, requests)
		}
	}
}

func TestAStopDoesNotEndASettleAndPull(t *testing.T) {
	handled, requests := (&busy{answer: settledAndPulled}).work(t, "settle-and-pull", WorkOptions{})
	if !reflect.DeepEqual(handled, []string{"1", "2"}) || requests[len(requests)-1] != `deliveries:settle [{"token":"t2","ack":true}]` {
		t.Error(handled, requests)
	}
}
