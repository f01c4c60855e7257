"""Headers about users and their rights (5.3 and later), whose settings are in the bodies."""

from __future__ import annotations

from typing import ClassVar

from ..constants import RequestCode
from .base import Header

__all__ = [
    "CreateAclRequestHeader",
    "CreateUserRequestHeader",
    "DeleteAclRequestHeader",
    "DeleteUserRequestHeader",
    "GetAclRequestHeader",
    "GetUserRequestHeader",
    "ListAclsRequestHeader",
    "ListUsersRequestHeader",
    "UpdateAclRequestHeader",
    "UpdateUserRequestHeader",
]


class CreateUserRequestHeader(Header, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.AUTH_CREATE_USER

    username: str | None = None


class UpdateUserRequestHeader(Header, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.AUTH_UPDATE_USER

    username: str | None = None


class DeleteUserRequestHeader(Header, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.AUTH_DELETE_USER

    username: str | None = None


class GetUserRequestHeader(Header, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.AUTH_GET_USER

    username: str | None = None


class ListUsersRequestHeader(Header, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.AUTH_LIST_USER

    filter: str | None = None


class CreateAclRequestHeader(Header, kw_only=True):
    """Header of AUTH_CREATE_ACL. ``subject``: the user, as ``User:name``. The body is an ``AclInfo``."""

    request_code: ClassVar[int | None] = RequestCode.AUTH_CREATE_ACL

    subject: str | None = None


class UpdateAclRequestHeader(Header, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.AUTH_UPDATE_ACL

    subject: str | None = None


class DeleteAclRequestHeader(Header, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.AUTH_DELETE_ACL

    subject: str | None = None
    policyType: str | None = None
    resource: str | None = None


class GetAclRequestHeader(Header, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.AUTH_GET_ACL

    subject: str | None = None


class ListAclsRequestHeader(Header, kw_only=True):
    request_code: ClassVar[int | None] = RequestCode.AUTH_LIST_ACL

    subjectFilter: str | None = None
    resourceFilter: str | None = None
