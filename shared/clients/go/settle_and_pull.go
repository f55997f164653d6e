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
	max := 0
	w.mu.Lock()
	if w.areReady {
		max = w.reserve(w.sending)
	}
	w.sending += len(items)
	w.mu.Unlock()
	defer w.update(func() { w.sending -= len(items) })
	if max == 0 {
		return w.client.settle(ctx, items)
	}
	return w.settleAndPull(ctx, items, max)
}

func (w *worker) settleAndPull(ctx context.Context, items []*item, max int) ([]Result[Ended], Error) {
	defer w.tasks.Done()
	var deliveries []*Delivery
	defer func() { w.endPull(max, deliveries) }()
	query := url.Values{"max": {strconv.Itoa(max)}, "lease": {milliseconds(w.options.Lease)}}
	if w.options.Consumer != "" {
		query.Set("consumer", w.options.Consumer)
	}
	r := request{method: http.MethodPost, path: w.path, query: "?" + query.Encode(), content: contentOf(items), to: toGateway, hasPayloads: true}
	var results []Result[Ended]
	failure := w.client.try(ctx, r, func(text []byte) (err error) {
		results, deliveries, err = w.client.readSettledAndPulled(text, len(items), max)
		return err
	})
	if failure != nil && !failure.Retryable() {
		// The next pull shows what is wrong with pulls. It says nothing about the outcomes.
		return w.client.settle(ctx, items)
	}
	return results, failure
}

func (c *Client) readSettledAndPulled(text []byte, count, max int) ([]Result[Ended], []*Delivery, error) {
	var answer struct {
		Results    list[json.RawMessage] `json:"results"`
		Deliveries list[deliveryBody]    `json:"deliveries"`
	}
	answer.Results.max, answer.Deliveries.max = count, max
	if err := json.Unmarshal(text, &answer); err != nil {
		return nil, nil, err
	}
	results, err := resultsOf[Ended](answer.Results)
	if err != nil {
		return nil, nil, err
	}
	deliveries, err := c.deliveriesOf(answer.Deliveries)
	return results, deliveries, err
}
