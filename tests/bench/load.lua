-- The asking side of tests.bench.service under wrk: every question has its own id and message.
-- wrk -s load.lua URL/v1/query -- KEY MODEL FEATURES [GENERATOR]
-- Generators that start in the same second need numbers of their own, else they ask the same.

local threads = 0
local values = {}

function setup(thread)
  thread:set("number", threads)
  threads = threads + 1
end

function init(args)
  local generator = tonumber(args[4] or 0)
  math.randomseed(os.time() * 1000 + generator * 100 + number)
  features = tonumber(args[3])
  headers = {
    ["Authorization"] = "Bearer " .. args[1],
    ["Model-Version"] = args[2],
    ["Content-Type"] = "application/octet-stream",
  }
  local ffi = require("ffi")
  local one = ffi.new("float[1]")
  for k = 0, 255 do
    one[0] = k / 256
    values[k] = ffi.string(one, 4)
  end
  prefix = string.format("%d-%d-%08x-%08x-", generator, number, math.random(0, 2^31 - 1), os.time())
  count = 0
end

function request()
  local parts = {}
  for k = 1, features do
    parts[k] = values[math.random(0, 255)]
  end
  count = count + 1
  headers["Idempotency-Key"] = prefix .. count
  return wrk.format("POST", wrk.path, headers, table.concat(parts))
end

function done(summary, latency, requests)
  local errors = summary.errors
  io.write(string.format(
    'RESULT {"answers": %d, "seconds": %f, "median": %f, "p99": %f, "refused": %d, "broken": %d}\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e6,
    latency:percentile(99) / 1e6, errors.status, errors.connect + errors.read + errors.write + errors.timeout
  ))
end
