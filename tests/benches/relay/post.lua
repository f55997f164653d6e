-- What wrk posts: `wrk -s post.lua URL -- single|batch DELAY SIZE BATCH`. Prints one line for the harness at the end.

function init(args)
  local kind, delay, size, batch = args[1], args[2], tonumber(args[3]), tonumber(args[4])
  wrk.method = "POST"
  local payload = string.rep("x", size)
  if kind == "single" then
    wrk.headers["Content-Type"] = "text/plain"
    wrk.headers["Lisa-Delay"] = delay
    wrk.body = payload
  else
    wrk.headers["Content-Type"] = "application/x-ndjson"
    local line = string.format('{"payload_text":"%s","delay":"%s"}\n', payload, delay)
    wrk.body = string.rep(line, batch)
  end
  request = (function(text) return function() return text end end)(wrk.format())
end

function done(summary)
  local errors = summary.errors
  local failed = errors.connect + errors.read + errors.write + errors.timeout + errors.status
  io.write(string.format("\nbench %d %d %d\n", summary.requests, summary.duration, failed))
end
