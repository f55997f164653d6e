"""Receives webhooks and checks their signatures: `webhook.py PORT SECRETS LOG` appends "ID ok" or "ID wrong" to LOG.

A signature of any key that SECRETS has, or had, is right.
"""

import base64
import hashlib
import hmac
import http.server
import sys

port, secrets, log = int(sys.argv[1]), sys.argv[2], sys.argv[3]
keys = []


class Receiver(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def do_POST(self):
        body = self.rfile.read(int(self.headers["Content-Length"]))
        with open(secrets, encoding="ascii") as lines:
            for line in lines:
                if line not in keys:
                    keys.append(line)
        name, at = self.headers["webhook-id"], self.headers["webhook-timestamp"]
        signed = f"{name}.{at}.".encode() + body
        given = [part.removeprefix("v1,") for part in self.headers["webhook-signature"].split()]
        made = [
            base64.b64encode(hmac.digest(base64.b64decode(key.strip().removeprefix("whsec_")), signed, hashlib.sha256)).decode()
            for key in keys
        ]
        with open(log, "a", encoding="utf-8") as file:
            file.write(f"{name} {'ok' if set(given) & set(made) else 'wrong'}\n")
        self.send_response(204)
        self.end_headers()

    def log_message(self, *_):
        pass


http.server.ThreadingHTTPServer(("127.0.0.1", port), Receiver).serve_forever()
