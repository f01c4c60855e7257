"""Admission of calls: the record of a call, credits, lines of ordered calls, and waiting for both."""

from .admission import Admission
from .call import Call, ReadReply, Result
from .credits import Credits, Epoch, finished
from .ordering import Line, Lines
