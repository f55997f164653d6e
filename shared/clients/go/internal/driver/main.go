// Command driver is the driver of the contract suite: see shared/clients/README.md.
package main

import (
	"bufio"
	"encoding/json"
	"log"
	"os"
)

func main() {
	commands := bufio.NewReader(os.Stdin)
	var d driver
	for {
		line, err := commands.ReadBytes('\n')
		if err != nil {
			return
		}
		var c command
		if err := json.Unmarshal(line, &c); err != nil {
			log.Fatal(err)
		}
		answer, err := json.Marshal(d.answer(c))
		if err != nil {
			log.Fatal(err)
		}
		os.Stdout.Write(append(answer, '\n'))
	}
}
