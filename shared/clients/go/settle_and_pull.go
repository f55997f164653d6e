package lisarelay

import (
	"context"
	"encoding/json"
	"net/http"
	"net/url"
	"strconv"
)

// send sends outcomes. While messages are ready, it pulls in the same request.
func (w *worker) send(ctx context.Context, items []*item) ([]Result[Ended], Error) {
	runs := 0
	w.mu.Lock()
	if w.areReady && !w.isRefused {
		runs = w.reserve(w.sending)
	}
	w.sending += len(items)
	w.mu.Unlock()
	defer w.update(func() { w.sending -= len(items) })
	var results []Result[Ended]
	var failure Error
	if runs > 0 {
		results, failure = w.settleAndPull(ctx, items, runs)
	}
	isRefused := failure != nil && !failure.Retryable()
	if isRefused {
		// It says nothing about the outcomes.
		w.options.Log("cannot settle and pull in one request", failure)
		w.update(func() { w.isRefused = true })
	}
	if runs == 0 || isRefused {
		results, failure = w.client.settle(ctx, items)
	}
	if areRepeated(results, failure) {
		// They count for the next pull.
		w.update(func() { w.areReady = false })
	}
	return results, failure
}

// areRepeated reports whether outcomes are sent again after a pause.
func areRepeated(results []Result[Ended], whole Error) bool {
	for _, result := range results {
		if failure, isError := result.Err.(Error); isError && failure.Retryable() {
			return true
		}
	}
	return whole != nil
}

func (w *worker) settleAndPull(ctx context.Context, items []*item, runs int) ([]Result[Ended], Error) {
	defer w.tasks.Done()
	var deliveries []*Delivery
	defer func() { w.endPull(runs, deliveries) }()
	options := w.pullOptions(runs)
	query := url.Values{"max": {strconv.Itoa(options.Max)}, "lease": {milliseconds(options.Lease)}}
	if options.Consumer != "" {
		query.Set("consumer", options.Consumer)
	}
	if options.MaxKeys > 0 {
		query.Set("max_per_key", strconv.Itoa(options.MaxPerKey))
		query.Set("max_keys", strconv.Itoa(options.MaxKeys))
	}
	r := request{method: http.MethodPost, path: w.path, query: "?" + query.Encode(), content: contentOf(items), to: toGateway, hasPayloads: true}
	var results []Result[Ended]
	failure := w.client.try(ctx, r, func(text []byte) (err error) {
		results, deliveries, err = w.client.readSettledAndPulled(text, len(items), options)
		return err
	})
	return results, failure
}

func (c *Client) readSettledAndPulled(text []byte, count int, options PullOptions) ([]Result[Ended], []*Delivery, error) {
	var answer struct {
		Results    list[json.RawMessage] `json:"results"`
		Deliveries list[deliveryBody]    `json:"deliveries"`
	}
	answer.Results.max, answer.Deliveries.max = count, options.Max
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, nil, err
	}
	results, err := resultsOf[Ended](answer.Results)
	if err != nil {
		return nil, nil, err
	}
	deliveries, err := c.deliveriesOf(answer.Deliveries, options.MaxKeys)
	return results, deliveries, err
}
