//! Commands with which a test makes the cluster fail.

use std::sync::Arc;
use std::time::{Duration, Instant};

use super::cluster::{Cluster, ClusterState};
use super::delete::delete_object;
use super::exec::PROTOCOLS;
use super::fault_plan::{ExecFault, ExpiredForm, FaultRule, RequestFault, StartFault};
use super::objects::{ObjectKey, now};
use super::pod_handle::Disruption;
use super::pod_status::set_condition;
use super::port_control::PortControl;

/// Commands that make a cluster fail. They take effect at once.
#[derive(Debug, Clone)]
pub struct KubeFaults {
    cluster: Arc<Cluster>,
    port: Arc<PortControl>,
}

impl KubeFaults {
    pub(super) fn new(cluster: Arc<Cluster>, port: Arc<PortControl>) -> Self {
        Self { cluster, port }
    }

    fn change(&self, change: impl FnOnce(&mut ClusterState)) {
        self.cluster.with(change);
        self.cluster.wake();
    }

    /// No pod can be placed, for a reason such as `Insufficient cpu`; `None` ends it.
    pub fn unschedulable(&self, reason: Option<&str>) {
        self.change(|state| state.faults.unschedulable = reason.map(str::to_owned));
    }

    /// The most pods that all nodes take; others stay pending.
    pub fn pod_capacity(&self, pods: Option<usize>) {
        self.change(|state| state.faults.pod_capacity = pods);
    }

    /// Thousandths of processors of all nodes; pods that request more stay pending.
    pub fn cpu_capacity(&self, milli: Option<u64>) {
        self.change(|state| state.faults.cpu_capacity = milli);
    }

    /// Time before a pod is placed.
    pub fn schedule_delay(&self, delay: Duration) {
        self.change(|state| state.faults.schedule_delay = delay);
    }

    /// The clock of the API server is behind that of this host.
    pub fn clock_behind(&self, by: Duration) {
        self.change(|state| state.faults.clock_behind = by);
    }

    /// An admission webhook denies new pods with a message; `None` ends it.
    pub fn deny_admission(&self, message: Option<&str>) {
        self.change(|state| state.faults.admission_denial = message.map(str::to_owned));
    }

    /// The role of the client lacks a verb of a resource, such as `pods/exec`; `*` stands for all.
    pub fn deny_access(&self, verb: &str, resource: &str) {
        self.change(|state| {
            state.faults.denied_access.push((verb.to_owned(), resource.to_owned()));
        });
    }

    /// The next requests with a verb and a resource fail; `*` stands for all.
    pub fn requests(&self, verb: &str, resource: &str, times: usize, fault: RequestFault) {
        let (verb, pattern) = (verb.to_owned(), resource.to_owned());
        self.change(|state| state.faults.requests.push(FaultRule { verb, pattern, times, fault }));
    }

    /// The next execs whose command contains a text fail.
    pub fn execs(&self, command: &str, times: usize, fault: ExecFault) {
        let rule = FaultRule { verb: String::new(), pattern: command.to_owned(), times, fault };
        self.change(|state| state.faults.execs.push(rule));
    }

    /// The next starts of containers whose image contains a text fail.
    pub fn starts(&self, image: &str, times: usize, fault: StartFault) {
        let rule = FaultRule { verb: String::new(), pattern: image.to_owned(), times, fault };
        self.change(|state| state.faults.starts.push(rule));
    }

    /// Ends all faults of requests, execs and starts.
    pub fn clear(&self) {
        self.change(|state| {
            state.faults.requests.clear();
            state.faults.execs.clear();
            state.faults.starts.clear();
            state.faults.denied_access.clear();
        });
    }

    /// The server offers only exec protocols that begin so, such as `v4`.
    pub fn exec_protocols(&self, prefix: &str) {
        let offered = PROTOCOLS.into_iter().filter(|name| name.starts_with(prefix)).collect();
        self.change(|state| state.faults.exec_protocols = offered);
    }

    /// Network policies are stored and have no effect, as without a network plug-in.
    pub fn ignore_network_policies(&self) {
        self.change(|state| state.faults.ignores_network_policies = true);
    }

    /// Network policies take a pod's network away some time after they have selected it.
    pub fn delay_network_policies(&self, delay: Duration) {
        self.change(|state| state.faults.network_policy_delay = delay);
    }

    /// Nodes report the end of a pod's containers some time before why they ended it.
    pub fn delay_reasons(&self, delay: Duration) {
        self.change(|state| state.faults.reason_delay = delay);
    }

    /// Forgets all changes so far: watches that begin or are in the past are expired.
    pub fn expire_watches(&self, form: ExpiredForm) {
        self.change(|state| {
            state.faults.expired_form = form;
            state.objects.compact();
        });
    }

    /// Closes all connections; new ones are accepted.
    pub fn cut_connections(&self) {
        self.cluster.cut_connections();
    }

    /// Closes all connections and the port.
    pub fn stop_listening(&self) {
        self.port.wanted.send_replace(false);
        self.cluster.cut_connections();
        self.port.wait_until(false);
    }

    /// Listens on the same port again.
    pub fn resume_listening(&self) {
        self.port.wanted.send_replace(true);
        self.port.wait_until(true);
    }

    /// The API server restarts. For a time it has not loaded its rules, and refuses every right with
    /// a code: 403, or 401.
    pub fn restart(&self, without_rules: Duration, code: u16) {
        self.stop_listening();
        let until = Instant::now() + without_rules;
        self.change(|state| state.faults.without_rules = Some((until, code)));
        self.resume_listening();
    }

    /// The node evicts a pod, with a message such as `The node was low on resource: memory.`
    pub fn evict(&self, namespace: &str, pod: &str, message: &str) {
        self.disrupt(namespace, pod, Disruption::Evicted(message.to_owned()));
    }

    /// A container of a pod exceeds its memory limit.
    pub fn out_of_memory(&self, namespace: &str, pod: &str) {
        self.disrupt(namespace, pod, Disruption::OutOfMemory);
    }

    fn disrupt(&self, namespace: &str, pod: &str, disruption: Disruption) {
        if let Some(handle) = self.cluster.handle_of(&ObjectKey::pod(namespace, pod)) {
            handle.disrupt(disruption);
        }
    }

    /// The scheduler preempts a pod: it gets a condition and is deleted with its time of grace.
    pub fn preempt(&self, namespace: &str, pod: &str) {
        let key = ObjectKey::pod(namespace, pod);
        self.change(|state| {
            state.objects.update(&key, |pod| {
                let message = "default-scheduler: preempting to accommodate a higher priority pod";
                let cause = "PreemptionByScheduler";
                set_condition(pod, "DisruptionTarget", "True", cause, message);
            });
        });
        // A pod that is gone needs no deletion.
        drop(delete_object(&self.cluster, &key, None));
    }

    /// The node of a pod is lost: the pod is not ready, though its containers were when the node
    /// reported last, and nothing reaches them.
    pub fn lose_node(&self, namespace: &str, pod: &str) {
        let key = ObjectKey::pod(namespace, pod);
        if let Some(handle) = self.cluster.handle_of(&key) {
            handle.lose();
        }
        self.change(|state| {
            state.objects.update(&key, |pod| {
                set_condition(pod, "Ready", "False", "", "");
            });
        });
    }

    /// The control plane deletes the pods of a lost node: they stay until they are removed by force.
    pub fn taint_lost_node(&self, namespace: &str, pod: &str) {
        let key = ObjectKey::pod(namespace, pod);
        self.change(|state| {
            state.objects.update(&key, |pod| {
                let message = "Taint manager: deleting due to NoExecute taint";
                let cause = "DeletionByTaintManager";
                set_condition(pod, "DisruptionTarget", "True", cause, message);
                pod["metadata"]["deletionTimestamp"] = now().into();
                pod["metadata"]["deletionGracePeriodSeconds"] = 30.into();
            });
        });
        if let Some(handle) = self.cluster.handle_of(&key) {
            handle.delete(30);
        }
    }

    /// Somebody else deletes a pod without grace.
    pub fn delete_pod(&self, namespace: &str, pod: &str) {
        // A pod that is gone needs no deletion.
        drop(delete_object(&self.cluster, &ObjectKey::pod(namespace, pod), Some(0)));
    }
}
