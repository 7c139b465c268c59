"""Documents of searches as frozen dataclasses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

StopReason = Literal[
    "max_depth_reached", "max_total_idea_evals_reached", "budget_spent", "empty_frontier"
]
"""Why a search ended."""

EvalStatus = Literal["queued", "running", "completed", "no_changes", "failed"]
"""State of an eval."""

Grade = Literal["strong", "promising", "mixed", "weak"]
"""Grade of a score."""


@dataclass(frozen=True)
class RelativeResults:
    """The results of an eval against one baseline."""

    baseline_csv_path: str
    """The baseline: a file of results of the search."""
    reasons: tuple[str, ...]
    """The reasons."""
    score: float | None = None
    """The score; `None` without one."""
    grade: Grade | None = None
    """The grade of the score."""
    should_explore: bool | None = None
    """Whether ideas that build on it are worth trying."""
    primary_delta: float | None = None
    """Improvement of the primary metric: positive is better."""


@dataclass(frozen=True)
class SearchCounts:
    """Outcomes of the evals of a search."""

    scored: int
    """With results that could be scored."""
    not_scored: int
    """With results that could not be scored."""
    no_changes: int
    """With an idea that changed nothing."""
    failed: int
    """Failed, also by the infrastructure's fault."""
    failed_by_infrastructure: int
    """Failed by the infrastructure's fault."""
    open: int
    """Not settled yet."""


@dataclass(frozen=True)
class BestStep:
    """A node of the path from the root to the best node."""

    node_id: str
    """The node."""
    commit: str
    """Its commit."""
    baseline_csv_path: str
    """Its own results: the baseline of the ideas that are tried on it."""
    idea: str | None = None
    """The idea that led to it; `None` for the root."""
    rank_score: float | None = None
    """Its score against the root, by which it ranks."""
    root_relative: RelativeResults | None = None
    """Its results against the root's; `None` for the root."""
    parent_relative: RelativeResults | None = None
    """Its results against its parent's; `None` for the root."""


@dataclass(frozen=True)
class TriedIdea:
    """An idea that was tried."""

    eval_id: str
    """The eval."""
    depth: int
    """The depth of the node it was tried on."""
    parent_node_id: str
    """That node."""
    idea: str
    """File name of the idea."""
    status: EvalStatus
    """Status of the eval."""
    root_relative: RelativeResults
    """Its results against the root's."""
    parent_relative: RelativeResults
    """Its results against its parent's."""
    outcome: str
    """The decision in words."""
    rank_score: float | None = None
    """Its score against the root, by which it ranks."""
    why: str | None = None
    """Detailed reason, if more is known than the outcome."""
    error: Mapping[str, Any] | None = None
    """The error, if it failed or its results cannot be used."""
    promoted_to_node_id: str | None = None
    """The node that it became."""
    commit: str | None = None
    """The commit that it became."""
    candidate_csv_path: str | None = None
    """Its results: a file of the search."""


@dataclass(frozen=True)
class SearchOverview:
    """Overview of a search: its progress and its results so far."""

    tree_run_id: str
    """Name of the search."""
    dry_run: bool
    """Whether the search is simulated."""
    current_depth: int
    """The depth that is being expanded."""
    nodes: int
    """Number of nodes, the root included."""
    evals: int
    """Number of evals."""
    settled: int
    """Number of settled evals."""
    counts: SearchCounts
    """Their outcomes."""
    deferred_cleanup: int
    """Number of failed removals to retry."""
    ideas_context_strategy: str
    """The ideas shown to a generator."""
    primary_metric: str
    """Column of the primary metric."""
    best_path: tuple[BestStep, ...]
    """The path from the root to the best node."""
    ideas: tuple[TriedIdea, ...]
    """The tried ideas."""
    raw: Mapping[str, Any]
    """The whole document."""
    stop_reason: StopReason | None = None
    """Why it ended; `None` while it has not."""

    @property
    def best(self) -> BestStep | None:
        """The best node; `None` before there is one."""
        return self.best_path[-1] if self.best_path else None
