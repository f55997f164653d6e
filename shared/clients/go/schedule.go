package lisarelay

import (
	"context"
	"net/http"
	"time"
)

// Schedule is a schedule with its definition.
type Schedule struct {
	// Schedule is its name.
	Schedule string `json:"schedule"`
	// Version changes whenever its definition does.
	Version int64 `json:"version"`
	// Definition is its definition, as JSON has it.
	Definition map[string]any `json:"definition"`
	// NextTimes are its next five times, whether it is paused or not.
	NextTimes []time.Time `json:"next_times"`
	// Warnings are about times that may surprise: days that some months do not have, and clock changes that skip or repeat a time.
	Warnings []string `json:"warnings"`
}

// SchedulePaused is a schedule that was paused or resumed.
type SchedulePaused struct {
	// Schedule is its name.
	Schedule string
	// Paused is true if it is paused.
	Paused bool
	// Changed is false if it was in that state already.
	Changed bool
}

// ScheduleRun is the message that a run of a schedule has sent.
type ScheduleRun struct {
	// Schedule is the name of the schedule.
	Schedule string
	// Topic is the topic of the message.
	Topic string
	// ID is the id of the message.
	ID string
	// Sent is false if an earlier run has sent the message in the same second.
	Sent bool
}

// PutSchedule creates a schedule, or replaces its definition: the fields of schedules.NAME in the configuration, such as {"topic":
// "reports", "cron": "0 0 6 * * *"}. At each time of its cron, the schedule sends a message to its topic. A field that is missing has
// its default. The manager answers it. The error is a [Problem] with the code "unknown_topic" if there is no such topic, and with
// "declared_in_file" if the configuration of the manager declares the schedule.
func (c *Client) PutSchedule(ctx context.Context, schedule string, definition map[string]any) (Schedule, error) {
	b := newBody()
	for name, value := range definition {
		b.fields[name] = value
	}
	content, err := b.json()
	if err != nil {
		return Schedule{}, err
	}
	r := request{method: http.MethodPut, content: content, to: toManager}
	isComplete := func(a *Schedule) bool {
		return a.Schedule != "" && a.Version != 0 && a.Definition != nil && a.NextTimes != nil && a.Warnings != nil
	}
	return lookup(ctx, c, r, []string{"schedules", schedule}, nil, isComplete)
}

// RemoveSchedule removes a schedule. The messages that it has sent stay. The manager answers it. The error is a [Problem] with the code
// "declared_in_file" if the configuration of the manager declares the schedule, and with "not_found" if there is none, also if an
// earlier try without an answer has removed it.
func (c *Client) RemoveSchedule(ctx context.Context, schedule string) error {
	where, err := path("schedules", schedule)
	if err != nil {
		return err
	}
	r := request{method: http.MethodDelete, path: where, to: toManager, noContent: true}
	return c.call(ctx, r, func([]byte) error { return nil })
}

// PauseSchedule pauses a schedule: it sends nothing until it is resumed. The manager answers it. The error is a [Problem] with the code
// "not_found" if there is none.
func (c *Client) PauseSchedule(ctx context.Context, schedule string) (SchedulePaused, error) {
	return c.setPaused(ctx, schedule, "pause")
}

// ResumeSchedule resumes a paused schedule. It does not send for the times that have passed. The manager answers it. The error is a
// [Problem] with the code "not_found" if there is none.
func (c *Client) ResumeSchedule(ctx context.Context, schedule string) (SchedulePaused, error) {
	return c.setPaused(ctx, schedule, "resume")
}

func (c *Client) setPaused(ctx context.Context, schedule, verb string) (SchedulePaused, error) {
	type paused struct {
		Schedule string `json:"schedule"`
		Paused   *bool  `json:"paused"`
		Changed  *bool  `json:"changed"`
	}
	r := request{method: http.MethodPost, to: toManager}
	isComplete := func(a *paused) bool { return a.Schedule != "" && a.Paused != nil && a.Changed != nil }
	answer, err := lookup(ctx, c, r, []string{"schedules", schedule, verb}, nil, isComplete)
	if err != nil {
		return SchedulePaused{}, err
	}
	return SchedulePaused{answer.Schedule, *answer.Paused, *answer.Changed}, nil
}

// RunSchedule sends a message of a schedule now, also if it is paused. Two runs in the same second send one message. A failed run is
// not repeated, because it may have sent the message, and a later second has another one. The manager answers it. The error is a
// [Problem] with the code "not_found" if there is no such schedule, and with "unknown_topic" if its topic does not exist.
func (c *Client) RunSchedule(ctx context.Context, schedule string) (ScheduleRun, error) {
	type run struct {
		Schedule string `json:"schedule"`
		Topic    string `json:"topic"`
		ID       string `json:"id"`
		Sent     *bool  `json:"sent"`
	}
	r := request{method: http.MethodPost, to: toManager, isSentOnce: true}
	isComplete := func(a *run) bool { return a.Schedule != "" && a.Topic != "" && a.ID != "" && a.Sent != nil }
	answer, err := lookup(ctx, c, r, []string{"schedules", schedule, "run"}, nil, isComplete)
	if err != nil {
		return ScheduleRun{}, err
	}
	return ScheduleRun{answer.Schedule, answer.Topic, answer.ID, *answer.Sent}, nil
}
