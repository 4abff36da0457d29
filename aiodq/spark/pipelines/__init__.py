"""Ready-made jobs over stores, each a function of a Spark session and a command `aiodq spark …`.

Without the extra `spark`, importing this raises `MissingExtraError`.
"""

from aiodq.spark import extra  # noqa: F401 - the first of the imports: it says what the others would not
from aiodq.spark.pipelines.archive import ArchiveSummary, archive
from aiodq.spark.pipelines.audit import AuditSummary, audit
from aiodq.spark.pipelines.compact import CompactSummary, compact
from aiodq.spark.pipelines.query import prepare_views, query
from aiodq.spark.pipelines.replay import ReplaySummary, replay
from aiodq.spark.pipelines.report import ReportSummary, report
from aiodq.spark.pipelines.session import check_stores, start_session
from aiodq.spark.pipelines.ship import ShipSummary, ship
from aiodq.spark.stream.lag import TopicLag, lag

__all__ = [
    "ArchiveSummary",
    "AuditSummary",
    "CompactSummary",
    "ReplaySummary",
    "ReportSummary",
    "ShipSummary",
    "TopicLag",
    "archive",
    "audit",
    "check_stores",
    "compact",
    "lag",
    "prepare_views",
    "query",
    "replay",
    "report",
    "ship",
    "start_session",
]
