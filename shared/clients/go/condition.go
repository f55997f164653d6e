package lisarelay

import (
	"fmt"
	"net/http"
)

// Condition is the condition of a change. If it is not met, the error is a [Problem] with the code "precondition_failed".
type Condition struct{ header, value, problem string }

// IfMatch changes something only if it has this version: the Epoch of a topic, or the Version of a schedule or token.
func IfMatch(version int64) Condition {
	c := Condition{header: "If-Match", value: fmt.Sprintf("%q", fmt.Sprint(version))}
	if version < 1 {
		c.problem = fmt.Sprintf("%d is not a version, which is at least 1", version)
	}
	return c
}

// CreateOnly changes nothing that exists. It is a condition of a put.
func CreateOnly() Condition { return Condition{header: "If-None-Match", value: "*"} }

// add adds the only one of some conditions, if there is one.
func (r *request) add(conditions []Condition) error {
	for n, one := range conditions {
		switch {
		case one.problem != "":
			return wrong("condition: %s", one.problem)
		case one.header == "":
			return wrong("condition: is empty; use IfMatch or CreateOnly")
		case n > 0:
			return wrong("condition: there can be only one")
		case one.value == "*" && r.method != http.MethodPut:
			return wrong("condition: CreateOnly is only for a put")
		}
		r.condition = [2]string{one.header, one.value}
	}
	return nil
}
