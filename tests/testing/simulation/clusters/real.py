"""Scenarios on real servers: child processes that get signals, and proxies that disturb what lies between."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from rmq_async.testing import ClusterProxy
from rmq_async.testing.cluster import RealCluster, Server

from . import programs
from .world import Network, Process, Program, World

__all__ = ["RealWorld"]


class RealProcess(Process):
    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    async def line(self) -> str:
        assert self._process.stdout is not None
        async with asyncio.timeout(30):
            line = await self._process.stdout.readline()
        assert line, "the process has ended"
        return line.decode().strip()

    async def kill(self) -> None:
        if self._process.returncode is None:
            self._process.kill()
        await self._process.communicate()


class RealNetwork(Network):
    def __init__(self, proxies: ClusterProxy) -> None:
        self.namesrv = proxies.namesrv
        self._proxies = proxies

    def lose_answers(self, broker: str) -> None:
        self._proxies.brokers[broker].to_client.stall()

    def silence(self, broker: str) -> None:
        self._proxies.brokers[broker].stall()

    def reset(self, broker: str) -> None:
        self._proxies.brokers[broker].reset()

    def heal(self, broker: str) -> None:
        self._proxies.brokers[broker].clear()


class RealWorld(World):
    def __init__(self, cluster: RealCluster) -> None:
        self.namesrv = cluster.namesrv
        self.name_servers = [server.address for server in cluster.nameservers]
        self._servers: dict[str, Server] = {server.name: server for server in cluster.servers}

    async def kill(self, name: str) -> None:
        await self._servers[name].kill()

    async def start(self, name: str) -> None:
        await self._servers[name].start()

    async def pause(self, name: str) -> None:
        self._servers[name].pause()

    async def resume(self, name: str) -> None:
        self._servers[name].resume()

    @asynccontextmanager
    async def network(self) -> AsyncIterator[Network]:
        async with ClusterProxy(self.namesrv) as proxies:
            yield RealNetwork(proxies)

    @asynccontextmanager
    async def process(self, program: Program, *arguments: str) -> AsyncIterator[Process]:
        command = [sys.executable, programs.__file__, program.__name__, *arguments]
        process = RealProcess(await asyncio.create_subprocess_exec(*command, stdout=asyncio.subprocess.PIPE))
        try:
            yield process
        finally:
            await process.kill()
