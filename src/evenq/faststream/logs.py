"""FastStream's log lines for this broker: topic and group before the text."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

from faststream._internal.logger import DefaultLoggerStorage, make_logger_state
from faststream._internal.logger.logging import get_broker_logger

if TYPE_CHECKING:
    from faststream._internal.basic_types import LoggerProto
    from faststream._internal.context import ContextRepo

MESSAGE_ID_WIDTH = 10


class EvenqLoggerStorage(DefaultLoggerStorage):
    """Makes the default logger, with columns as wide as the longest topic and group."""

    def __init__(self) -> None:
        super().__init__()
        self._topic_width = len("topic")
        self._group_width = 0

    def register_subscriber(self, params: dict[str, Any]) -> None:
        """Called for each subscriber before the first log line."""
        self._topic_width = max(self._topic_width, len(params.get("topic", "")))
        self._group_width = max(self._group_width, len(params.get("group", "")))

    def get_logger(self, *, context: ContextRepo) -> LoggerProto:
        logger = self._get_logger_ref()
        if logger is None:
            logger = get_broker_logger(
                name="evenq",
                default_context={"topic": "", "group": ""},
                message_id_ln=MESSAGE_ID_WIDTH,
                fmt=f"%(asctime)s %(levelname)-8s - %(topic)-{self._topic_width}s | %(group)-{self._group_width}s | "
                f"%(message_id)-{MESSAGE_ID_WIDTH}s - %(message)s",
                context=context,
                log_level=self.logger_log_level,
            )
            self._logger_ref.add(logger)
        return logger


make_evenq_logger_state = partial(make_logger_state, default_storage_cls=EvenqLoggerStorage)
