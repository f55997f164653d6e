package lisarelay

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"net/url"
	"regexp"
	"strings"
	"time"
	"unicode/utf8"
)

// body is the body of a request, or an item of one. It collects what is wrong with the arguments.
type body struct {
	fields map[string]any
	wrong  []string
}

func newBody() *body { return &body{fields: map[string]any{}} }

// text adds a text, unless it is empty.
func (b *body) text(name, value string) {
	if value != "" {
		b.check(name, value)
		b.fields[name] = value
	}
}

// check refuses a text that JSON cannot have: encoding/json would change it.
func (b *body) check(name, value string) {
	if !utf8.ValidString(value) {
		b.refuse("%s: is not UTF-8", name)
	}
}

// name refuses a name that does not match a pattern.
func (b *body) name(argument, value string, pattern *regexp.Regexp) {
	if !pattern.MatchString(value) {
		b.refuse("%s: %q is not allowed; use %s", argument, shortened(value, 100), strings.Trim(pattern.String(), "^$"))
	}
}

// number adds a number, unless it is zero.
func (b *body) number(name string, value int) {
	if value != 0 {
		b.fields[name] = value
	}
}

// deliveries adds a number of deliveries of a pull, unless it is zero.
func (b *body) deliveries(argument, name string, value int) {
	if value < 0 || value > maxPull {
		b.refuse("%s: %d is not in 1 to %d", argument, value, maxPull)
	}
	b.number(name, value)
}

// duration adds a duration in milliseconds, rounded up, unless it is zero.
func (b *body) duration(name string, value time.Duration) {
	if value < 0 {
		b.refuse("%s: %v is negative", name, value)
	} else if value != 0 {
		b.fields[name] = milliseconds(value)
	}
}

func milliseconds(value time.Duration) string {
	count := value / time.Millisecond
	if value%time.Millisecond > 0 {
		count++
	}
	return fmt.Sprintf("%dms", int64(count))
}

// instant adds an instant, unless it is zero.
func (b *body) instant(name string, value time.Time) {
	if value.IsZero() {
		return
	}
	if value = value.UTC(); value.Year() < 0 || value.Year() > 9999 {
		b.refuse("%s: its year is not in 0 to 9999", name)
	}
	b.fields[name] = value
}

func (b *body) refuse(format string, values ...any) {
	b.wrong = append(b.wrong, fmt.Sprintf(format, values...))
}

// err returns one error for all wrong arguments.
func (b *body) err() error {
	if len(b.wrong) == 0 {
		return nil
	}
	return wrong("%s", strings.Join(b.wrong, "; "))
}

func (b *body) json() ([]byte, error) {
	if err := b.err(); err != nil {
		return nil, err
	}
	var text bytes.Buffer
	encoder := json.NewEncoder(&text)
	// A payload arrives as it was encoded here.
	encoder.SetEscapeHTML(false)
	if err := encoder.Encode(b.fields); err != nil {
		return nil, wrong("payload: %v", err)
	}
	return bytes.TrimSuffix(text.Bytes(), []byte("\n")), nil
}

// query returns the fields as the query of a URL, with its question mark.
func (b *body) query() (string, error) {
	if len(b.fields) == 0 {
		return "", b.err()
	}
	query := url.Values{}
	for name, value := range b.fields {
		if at, isTime := value.(time.Time); isTime {
			value = at.Format(time.RFC3339Nano)
		}
		query.Set(name, fmt.Sprint(value))
	}
	return "?" + query.Encode(), b.err()
}

// list is a list in an answer. It refuses further items before it decodes them: their values may take much more memory than their text.
type list[T any] struct {
	max   int
	items []T
}

// UnmarshalJSON decodes one item after the other.
func (l *list[T]) UnmarshalJSON(text []byte) error {
	decoder := json.NewDecoder(bytes.NewReader(text))
	if start, err := decoder.Token(); err != nil || start != json.Delim('[') {
		return errors.New("not a list")
	}
	for l.items = []T{}; decoder.More(); {
		if len(l.items) == l.max {
			return fmt.Errorf("a list of more than %d", l.max)
		}
		var one T
		if err := decoder.Decode(&one); err != nil {
			return err
		}
		l.items = append(l.items, one)
	}
	return nil
}
