"""Admission of calls: what a call is and holds, credits, lines of ordered calls, and the wait for both."""

from .admission import Admission
from .call import Call, ReadReply, Result
from .credits import Credits, Epoch, finished
from .ordering import Line, Lines
