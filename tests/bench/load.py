"""The asking side of `tests.bench.service`, a process of its own that costs little itself.

`python tests/bench/load.py HOST PORT KEY MODEL FEATURES CONNECTIONS SECONDS` asks without a pause
over kept connections, and prints the waiting times in seconds as JSON.
"""

import asyncio
import json
import os
import struct
import sys
import time

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def head_of(place: tuple[str, int], key: str, model: str, features: int) -> str:
    """Return the head of a question but for its id and the empty line."""
    return (
        f"POST /v1/query HTTP/1.1\r\nHost: {place[0]}\r\nAuthorization: Bearer {key}\r\n"
        f"Model-Version: {model}\r\nContent-Type: application/octet-stream\r\n"
        f"Content-Length: {4 * features}\r\n"
    )


async def asked(streams: Streams, head: str, name: str, message: bytes) -> bytes:
    """Return an answer's body; RuntimeError with a refusal's."""
    reader, writer = streams
    writer.write(f"{head}Idempotency-Key: {name}\r\n\r\n".encode() + message)
    answer = (await reader.readuntil(b"\r\n\r\n")).lower()
    length = int(answer.split(b"content-length: ")[1].split(b"\r\n")[0])
    body = await reader.readexactly(length)
    if not answer.startswith(b"http/1.1 200"):
        raise RuntimeError(body.decode())
    return body


async def connection(place: tuple[str, int], head: str, features: int, until: float) -> list[float]:
    """Return the waiting time of each answer on one connection."""
    streams = await asyncio.open_connection(*place)
    times = []
    while time.monotonic() < until:
        name = os.urandom(16).hex()
        values = [byte / 256 for byte in os.urandom(features)]
        message = struct.pack(f"<{features}f", *values)
        begun = time.perf_counter()
        await asked(streams, head, name, message)
        times.append(time.perf_counter() - begun)
    streams[1].close()
    return times


async def main() -> None:
    """Ask on all connections at once and print the times."""
    host, port, key, model = sys.argv[1:5]
    features, connections = int(sys.argv[5]), int(sys.argv[6])
    place = host, int(port)
    head = head_of(place, key, model, features)
    until = time.monotonic() + float(sys.argv[7])
    asking = [connection(place, head, features, until) for _ in range(connections)]
    print(json.dumps([t for times in await asyncio.gather(*asking) for t in times]))


if __name__ == "__main__":
    asyncio.run(main())
