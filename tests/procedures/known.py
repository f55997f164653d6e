"""Checks that the programs know the verbs and options of commands, without running them.

Reads lines of a page, a tab and a command. Runs each command with --help, which still reports an unknown verb or option.
"""

import re
import shlex
import subprocess
import sys

number = 0
for found in sys.stdin:
    page, _, line = found.rstrip("\n").partition("\t")
    words = []
    line = re.sub(r"\s\d?>.*", "", line)
    lexer = shlex.shlex(line, posix=True, punctuation_chars="|&;<>()")
    lexer.whitespace_split = True
    for word in lexer:
        if set(word) <= set("|&;<>()"):
            break
        words.append(word)
    if not words or words[0] not in ("lisa-manager", "lisa-producer", "lisa-consumer"):
        continue
    done = subprocess.run([*words, "--help"], capture_output=True, text=True, stdin=subprocess.DEVNULL)
    if done.returncode:
        sys.exit(f"FAILED: {page}: {line}\n{done.stderr}")
    number += 1
print(number)
