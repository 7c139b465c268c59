//! The main loop of a search.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use rollout_base::fs_make::make_below;
use rollout_engine::Fence;
use rollout_protocol::Timestamp;

use super::{
    BackendError, DesiredRepositoryState, EvalOrder, EvalResult, ManifestClock, SearchBackend,
    SearchDirectory, SearchError, cleanup, context_pack, ideas, merge,
};
use crate::workloads::search::manifest::{EvalStatus, SearchManifest, StopReason};
use crate::workloads::search::policy::{self, PolicyNeeds, PolicyStep};
use rollout_protocol::search::{EvalId, NodeId};

/// A search that this process owns.
/// Every turn writes the manifest at most once and depends only on the manifest and the files. A
/// resumed search continues with the interrupted turn.
pub struct SearchSession<W> {
    pub(super) directory: SearchDirectory,
    pub(super) manifest: SearchManifest,
    pub(super) backend: W,
    pub(super) clock: ManifestClock,
    /// Checks that this process still owns the search.
    pub(super) fence: Fence,
    /// Set when a user requests a stop.
    pub(super) stop: Arc<AtomicBool>,
    /// Resolved directories of earlier ideas that the user named.
    pub(super) context: Vec<PathBuf>,
    /// Last desired state of the repository.
    pub(super) last_desired: Option<DesiredRepositoryState>,
    /// Results that a former owner did not merge.
    pub(super) unmerged: BTreeSet<EvalId>,
    /// Evals that this owner began.
    pub(super) running: BTreeSet<EvalId>,
    /// Writes after which a test simulates a crash.
    #[cfg(test)]
    pub(super) writes_left: Option<u32>,
}

impl<W: SearchBackend> SearchSession<W> {
    /// The manifest of the search.
    pub fn manifest(&self) -> &SearchManifest {
        &self.manifest
    }

    /// Runs until the search has ended and writes its reports. Blocks.
    ///
    /// # Errors
    /// [`SearchError`]; everything in the manifest stays.
    pub fn run(&mut self) -> Result<StopReason, SearchError> {
        loop {
            if self.stop.load(Ordering::Relaxed) {
                return Err(BackendError::Stopped.into());
            }
            if self.clean_up()? {
                continue;
            }
            let now = self.now();
            match policy::step(&mut self.manifest, now, &self.directory) {
                PolicyStep::Changed => {
                    self.persist(now)?;
                    self.backend.on_manifest_written(&self.manifest);
                }
                PolicyStep::Needs(PolicyNeeds::Ideas(nodes)) => self.advance_ideas(&nodes)?,
                PolicyStep::Needs(PolicyNeeds::Evals(owed)) => self.advance_evals(&owed)?,
                PolicyStep::Needs(PolicyNeeds::Ended(reason)) => {
                    self.fence.check()?;
                    self.directory.write_reports(&self.manifest)?;
                    return Ok(reason);
                }
            }
        }
    }

    fn now(&self) -> Timestamp {
        self.clock.after(self.manifest.updated_at)
    }

    /// Writes the manifest, unless another process owns the search.
    fn persist(&mut self, now: Timestamp) -> Result<(), SearchError> {
        self.manifest.updated_at = now;
        self.directory.write(&self.manifest, &self.fence)?;
        #[cfg(test)]
        if let Some(left) = &mut self.writes_left {
            *left -= 1;
            if *left == 0 {
                return Err(BackendError::Stopped.into());
            }
        }
        Ok(())
    }

    /// Removes due and useless objects. Returns whether the manifest was written.
    fn clean_up(&mut self) -> Result<bool, SearchError> {
        let now = self.now();
        let (directory, manifest, fence) = (&self.directory, &mut self.manifest, &self.fence);
        let mut changed = cleanup::retry(directory, manifest, &mut self.backend, fence, now)?;
        if !changed {
            let wanted = DesiredRepositoryState::from_manifest(manifest);
            if self.last_desired.as_ref() != Some(&wanted) {
                let backend = &mut self.backend;
                changed = cleanup::reconcile(directory, manifest, backend, fence, &wanted, now)?;
                self.last_desired = Some(wanted);
            }
        }
        if changed {
            self.persist(now)?;
        }
        Ok(changed)
    }

    /// Gets the ideas of nodes; existing ones are used as they are.
    fn advance_ideas(&mut self, nodes: &[NodeId]) -> Result<(), SearchError> {
        self.fence.check()?;
        let (mut orders, mut contexts) = (Vec::new(), Vec::new());
        for node in nodes {
            let context =
                ideas::idea_context(&self.directory, &self.manifest, *node, &self.context)?;
            let pack_files = context_pack::ensure_context_pack(
                &self.directory,
                &self.manifest,
                *node,
                &mut self.backend,
            )?;
            if !self.directory.ideas(*node).exists() {
                let shown = context.paths.clone();
                orders.push(ideas::ideas_order(&self.directory, &self.manifest, *node, shown)?);
            }
            contexts.push((*node, context, pack_files));
        }
        if !orders.is_empty() {
            let (directory, fence) = (&self.directory, &self.fence);
            self.backend.generate_ideas(orders, &mut |node| {
                fence.check()?;
                ideas::accept(directory, node)
            })?;
        }
        for (id, context, told) in contexts {
            let name = self.manifest.node(id).node_ideas_dir.clone();
            let files = ideas::read(&self.directory.ideas(id), &name, id)?;
            let cost = ideas::cost(&self.directory.ideas(id))?;
            let calls = ideas::calls(&self.directory.ideas(id))?;
            if let Some(node) = self.manifest.nodes.get_mut(&id) {
                let own = format!("{name}/");
                node.context_pack_files = told;
                node.ideas_cost = cost;
                node.ideas_calls = calls;
                node.context_ideas_dirs = context.names;
                node.context_idea_files = context.files;
                // Its own ideas were not shown to it, even if they exist already.
                node.context_idea_files.retain(|file| !file.path.starts_with(&own));
            }
            policy::add_ideas(&mut self.manifest, id, files);
        }
        self.persist(self.now())
    }

    /// Begins an eval, or merges the result of one.
    fn advance_evals(&mut self, pending: &[EvalId]) -> Result<(), SearchError> {
        if let Some(id) = self.unmerged.pop_first() {
            return self.merge_unmerged(id);
        }
        let most = self.manifest.run_config.max_parallel_evals as usize;
        let next = pending.iter().find(|id| !self.running.contains(id)).copied();
        match next.filter(|_| self.running.len() < most) {
            Some(id) => self.begin_eval(id),
            None => {
                let result = self.backend.next_result()?;
                self.running.remove(&result.eval_id);
                self.merge(result)
            }
        }
    }

    fn begin_eval(&mut self, id: EvalId) -> Result<(), SearchError> {
        self.fence.check()?;
        let now = self.now();
        if let Some(eval) = self.manifest.evaluations.get_mut(&id)
            && eval.status != EvalStatus::Running
        {
            eval.status = EvalStatus::Running;
            self.persist(now)?;
        }
        let eval = self.manifest.evaluations[&id].clone();
        let root = self.directory.eval(id);
        let experiment = policy::experiment_dir(&eval.eval_output_root);
        let experiment = self.directory.root().join(experiment);
        make_below(self.directory.root(), &experiment)
            .map_err(SearchError::io("create", &experiment))?;
        self.backend.begin_eval(EvalOrder {
            parent_commit: self.manifest.node(eval.parent_node_id).commit.clone(),
            idea: self.directory.root().join(&eval.idea_path),
            root,
            retries: self.manifest.run_config.eval_retries,
            round: self.manifest.eval_discards(id),
            eval,
        })?;
        self.running.insert(id);
        Ok(())
    }

    /// Merges a result that a former owner left.
    fn merge_unmerged(&mut self, id: EvalId) -> Result<(), SearchError> {
        let root = self.directory.eval(id);
        let result = EvalResult::read(&root, &self.manifest, id)?;
        let Some(result) = result else {
            let reason = "the result of this eval is missing".to_owned();
            return Err(SearchError::Damaged { path: root.join(super::result::FILE), reason });
        };
        self.backend.on_unmerged_result(&result);
        self.merge(result)
    }

    fn merge(&mut self, result: EvalResult) -> Result<(), SearchError> {
        self.fence.check()?;
        merge::merge(&self.directory, &mut self.manifest, &self.backend, result)?;
        self.persist(self.now())
    }
}
