package lisarelay

import (
	"context"
	"net/http"
	"time"
)

// PageOptions are the options of a list by name. Its zero value lists the first 100.
type PageOptions struct {
	// Prefix is the start of the names. If it is empty, all are listed.
	Prefix string
	// Limit is the largest number of a page, at most 1000. Zero means 100.
	Limit int
	// Cursor is the Next of the page before, whose other options must be the same.
	Cursor string
}

// SchedulePage is a page of schedules by name. With large definitions, it has fewer than its limit.
type SchedulePage struct {
	// Schedules are the schedules.
	Schedules []ListedSchedule
	// Next is the cursor of the next page, or empty if this is the last one.
	Next string
	// Damaged are those whose definition cannot be read.
	Damaged []DamagedSchedule
}

// DamagedSchedule is a schedule whose definition cannot be read.
type DamagedSchedule struct {
	// Schedule is its name.
	Schedule string `json:"schedule"`
	// Error is the reason.
	Error string `json:"error"`
}

// ListedSchedule is a schedule of a page, and its progress.
type ListedSchedule struct {
	// Schedule is its name.
	Schedule string `json:"schedule"`
	// Topic is the topic that it sends to.
	Topic string `json:"topic"`
	// Cron is its cron expression.
	Cron string `json:"cron"`
	// TimeZone is the time zone of Cron.
	TimeZone string `json:"time_zone"`
	// DeclaredInFile is true if the configuration of the manager declares it.
	DeclaredInFile bool `json:"declared_in_file"`
	// SentUntil is the newest of its times for which a message was sent, possibly ahead of that time, or zero.
	SentUntil time.Time `json:"sent_until"`
	// Next is its next time. It is zero if the schedule is paused.
	Next time.Time `json:"next"`
	// Missed is the number of its times for which no message was sent because no manager was available, or because the topic refused it.
	Missed int64 `json:"missed"`
	// NewestMissed is the newest of those, or zero.
	NewestMissed time.Time `json:"newest_missed"`
	// PausedSince is the time at which it was paused, or zero.
	PausedSince time.Time `json:"paused_since"`
	// Error is the error of its last send, if that failed.
	Error string `json:"error"`
	// ErrorAt is the time of that error, or zero.
	ErrorAt time.Time `json:"error_at"`
}

// Schedule is a schedule with its definition.
type Schedule struct {
	ListedSchedule
	// Version grows with each change of its definition. It is zero if the configuration of the manager declares it.
	Version int64 `json:"version"`
	// Definition is its definition, as JSON has it.
	Definition map[string]any `json:"definition"`
	// NextTimes are its next five times, whether it is paused or not.
	NextTimes []time.Time `json:"next_times"`
	// Warnings are about times that may surprise: days that some months do not have, and clock changes that skip or repeat a time.
	Warnings []string `json:"warnings"`
}

// BackfillPeriod is a period of the past.
type BackfillPeriod struct {
	// From is its first time.
	From time.Time
	// To is its end, which is not part of it. Zero means now.
	To time.Time
	// DryRun counts the times, and sends nothing.
	DryRun bool
}

// Backfilled are the messages that a backfill has sent.
type Backfilled struct {
	// Schedule is the name of the schedule.
	Schedule string
	// Topic is the topic of the messages.
	Topic string
	// Times is the number of times of this call, at most 1,000.
	Times int
	// Sent is the number of messages that were sent. It is zero after a dry run.
	Sent int
	// Duplicates is the number of times for which there was a message already, also of an earlier try. It is zero after a dry run.
	Duplicates int
	// Next is the From of the next call, or zero at the end.
	Next time.Time
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

func (s *ListedSchedule) isListed() bool {
	return s.Schedule != "" && s.Topic != "" && s.Cron != "" && s.TimeZone != ""
}

func (s *Schedule) isComplete() bool {
	return s.isListed() && s.Definition != nil && s.NextTimes != nil && s.Warnings != nil
}

// ListSchedules lists schedules by name, a page at a time. The manager answers it.
func (c *Client) ListSchedules(ctx context.Context, options PageOptions) (SchedulePage, error) {
	query, err := options.query()
	if err != nil {
		return SchedulePage{}, err
	}
	type page struct {
		Schedules []ListedSchedule  `json:"schedules"`
		Next      string            `json:"next"`
		Damaged   []DamagedSchedule `json:"damaged"`
	}
	r := request{method: http.MethodGet, query: query, to: toManager}
	isComplete := func(a *page) bool {
		return a.Schedules != nil && len(a.Schedules) <= options.most() && all(a.Schedules, (*ListedSchedule).isListed)
	}
	answer, err := lookup(ctx, c, r, []string{"schedules"}, nil, isComplete)
	return SchedulePage(answer), err
}

// GetSchedule returns a schedule with its definition and its next times. The manager answers it. The error is a [Problem] with the code
// "not_found" if there is none.
func (c *Client) GetSchedule(ctx context.Context, schedule string) (Schedule, error) {
	r := request{method: http.MethodGet, to: toManager}
	return lookup(ctx, c, r, []string{"schedules", schedule}, nil, (*Schedule).isComplete)
}

func (o PageOptions) query() (string, error) {
	b := newBody()
	b.text("prefix", o.Prefix)
	b.number("limit", o.Limit)
	b.text("cursor", o.Cursor)
	return b.query()
}

// most returns the largest number of a page.
func (o PageOptions) most() int {
	if o.Limit > 0 {
		return o.Limit
	}
	return maxPage
}

// PutSchedule creates a schedule, or replaces its definition: the fields of schedules.NAME in the configuration, such as {"topic":
// "reports", "cron": "0 0 6 * * *"}. At each time of its cron, the schedule sends a message to its topic. A field that is missing has
// its default. The manager answers it. The error is a [Problem] with the code "unknown_topic" if there is no such topic, and with
// "declared_in_file" if the configuration of the manager declares the schedule. If a condition is not met, and the schedule does not have
// this definition already, it has the code "precondition_failed".
func (c *Client) PutSchedule(ctx context.Context, schedule string, definition map[string]any, condition ...Condition) (Schedule, error) {
	b := newBody()
	for name, value := range definition {
		b.fields[name] = value
	}
	content, err := b.json()
	if err != nil {
		return Schedule{}, err
	}
	r := request{method: http.MethodPut, content: content, to: toManager}
	if err := r.add(condition); err != nil {
		return Schedule{}, err
	}
	return lookup(ctx, c, r, []string{"schedules", schedule}, nil, (*Schedule).isComplete)
}

// RemoveSchedule removes a schedule. The messages that it has sent stay. The manager answers it. The error is a [Problem] with the code
// "declared_in_file" if the configuration of the manager declares the schedule, and with "not_found" if there is none, also if an
// earlier try without an answer has removed it. With [IfMatch], it has the code "precondition_failed" if the schedule has another version.
func (c *Client) RemoveSchedule(ctx context.Context, schedule string, condition ...Condition) error {
	where, err := path("schedules", schedule)
	if err != nil {
		return err
	}
	r := request{method: http.MethodDelete, path: where, to: toManager, noContent: true}
	if err := r.add(condition); err != nil {
		return err
	}
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

// BackfillSchedule sends a message, due now, for each time of a schedule in a period. A time for which there is a message already, within
// the dedup_window of the topic, is skipped. A call sends up to 1,000 messages: its Next is the From of the next one. The manager answers
// it. The error is a [Problem] with the code "not_found" if there is no such schedule, with "unknown_topic" if its topic does not exist,
// and with "full" if the topic is full.
func (c *Client) BackfillSchedule(ctx context.Context, schedule string, period BackfillPeriod) (Backfilled, error) {
	b := newBody()
	b.instant("from", period.From)
	b.instant("to", period.To)
	b.fields["dry_run"] = period.DryRun
	if period.From.IsZero() {
		b.refuse("From: is zero")
	}
	content, err := b.json()
	if err != nil {
		return Backfilled{}, err
	}
	type backfilled struct {
		Schedule   string    `json:"schedule"`
		Topic      string    `json:"topic"`
		Times      *int      `json:"times"`
		Sent       *int      `json:"sent"`
		Duplicates *int      `json:"duplicates"`
		Next       time.Time `json:"next"`
	}
	r := request{method: http.MethodPost, content: content, to: toManager}
	isComplete := func(a *backfilled) bool {
		return a.Schedule != "" && a.Topic != "" && a.Times != nil && a.Sent != nil && a.Duplicates != nil
	}
	answer, err := lookup(ctx, c, r, []string{"schedules", schedule, "backfill"}, nil, isComplete)
	if err != nil {
		return Backfilled{}, err
	}
	return Backfilled{answer.Schedule, answer.Topic, *answer.Times, *answer.Sent, *answer.Duplicates, answer.Next}, nil
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
