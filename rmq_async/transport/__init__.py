"""TCP connections to servers for requests and responses, and a pool of connections."""

from .connection import Connection, ConnectionSettings, RequestHandler
from .loop_errors import raise_soon, report
from .oneway_control import send_control
from .pending import Pending, Receiver
from .pool import ConnectionPool, RequestOptions
from .process import check_not_forked, generation
from .request_hooks import HookedRequest, RequestHooks, call_hook, report_hook
from .request_table import RequestTable
from .server_requests import not_supported
from .states import CloseReason, ConnectionState
from .threads import Threads
from .tls import client_context
