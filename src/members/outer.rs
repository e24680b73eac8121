//! The operations of the parts under the names that callers use so far.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use super::{Belongings, Bereft, ErrorClass, Members, MembersError, Patience, PutBack, Seat};
use crate::codec::{CodeId, Geometry};
use crate::format::journal::Life;
use crate::format::{Epoch, Lsn, MemberIndex, SegmentId, VolumeId};
use crate::store::{Executor, Op, Outcome, Space, Store, StoreError, StoreRef};

#[expect(
    missing_docs,
    clippy::missing_errors_doc,
    reason = "the parts describe them"
)]
impl Members {
    pub fn volume_id(&self) -> VolumeId {
        self.shape().volume_id()
    }

    pub fn label(&self) -> &str {
        self.shape().label()
    }

    pub fn geometry(&self) -> Geometry {
        self.shape().geometry()
    }

    pub fn code(&self) -> CodeId {
        self.shape().code()
    }

    pub fn unit_bytes(&self) -> u32 {
        self.shape().unit_bytes()
    }

    pub fn greatest_height(&self) -> u32 {
        self.shape().greatest_height()
    }

    pub fn stripe_bytes(&self) -> u32 {
        self.shape().stripe_bytes()
    }

    pub fn segment_bytes(&self) -> u64 {
        self.shape().segment_bytes()
    }

    pub fn epoch(&self) -> Epoch {
        self.membership().epoch()
    }

    pub fn count(&self) -> usize {
        self.membership().count()
    }

    pub fn live(&self) -> Vec<MemberIndex> {
        self.membership().live()
    }

    pub fn store(&self, member: MemberIndex) -> Option<StoreRef> {
        self.membership().store(member)
    }

    pub fn path(&self, member: MemberIndex) -> String {
        self.membership().path(member)
    }

    pub fn is_failed(&self) -> bool {
        self.membership().is_failed()
    }

    pub fn homes(&self) -> Vec<MemberIndex> {
        self.membership().homes()
    }

    pub fn at(&self, paths: &[String]) -> Option<MemberIndex> {
        self.membership().at(paths)
    }

    pub fn away(&self) -> Vec<(MemberIndex, String)> {
        self.membership().away()
    }

    pub fn was_here(&self, member: MemberIndex) -> bool {
        self.membership().was_online(member)
    }

    pub fn heir_of(&self, member: MemberIndex) -> Option<MemberIndex> {
        self.membership().heir_of(member)
    }

    pub fn successor_of(&self, member: MemberIndex) -> Option<MemberIndex> {
        self.membership().successor_of(member)
    }

    pub fn successor_at(&self, paths: &[String]) -> Option<MemberIndex> {
        self.membership().successor_at(paths)
    }

    pub fn given_up(&self) -> BTreeSet<MemberIndex> {
        self.membership().given_up()
    }

    pub fn leaving(&self) -> Vec<MemberIndex> {
        self.membership().draining()
    }

    pub fn begin(&self) -> Result<(), MembersError> {
        self.epochs().begin()
    }

    pub fn admit_stale(&self) -> Result<(), MembersError> {
        self.epochs().admit_stale()
    }

    pub fn stale(&self) -> Vec<MemberIndex> {
        self.epochs().stale()
    }

    pub fn set_given_up(&self, given_up: BTreeSet<MemberIndex>) {
        self.epochs().set_given_up(given_up);
    }

    pub fn give_up_absentees(&self) {
        self.epochs().give_up_absentees();
    }

    pub fn renew_superblocks(&self) {
        self.epochs().renew_superblocks();
    }

    pub fn may_have_gone_on(&self) -> Vec<String> {
        self.epochs().may_have_gone_on()
    }

    pub fn is_known(&self, other: &StoreRef) -> bool {
        self.epochs().is_known(other)
    }

    pub fn check_not_overtaken(&self, others: &[StoreRef]) -> Result<(), MembersError> {
        self.epochs().check_not_superseded(others)
    }

    pub fn executor(&self) -> &Arc<Executor> {
        self.io().executor()
    }

    pub fn run(&self, ops: Vec<(MemberIndex, Op)>) -> Vec<Outcome> {
        self.io().run(ops)
    }

    pub fn read(&self, ops: Vec<(MemberIndex, Op)>, patience: Patience) -> Vec<Outcome> {
        self.io().read(ops, patience)
    }

    pub fn is_avoided(&self, member: MemberIndex) -> bool {
        self.io().is_avoided(member)
    }

    pub fn spaces(&self) -> Vec<(MemberIndex, Space)> {
        self.io().spaces()
    }

    pub fn look(&self) {
        self.io().probe_hedged();
    }

    pub fn fail(&self, member: MemberIndex, error: &StoreError) {
        self.io().fail(member, error);
    }

    pub fn leave_doubtful(&self, member: MemberIndex) {
        self.io().fail_stale_copy(member);
    }

    pub fn count_error(&self, member: MemberIndex, class: ErrorClass) {
        self.io().count_error(member, class);
    }

    pub fn count_wrong(&self, member: MemberIndex, blocks: u64) {
        self.io().count_wrong(member, blocks);
    }

    pub fn fill(&self, member: MemberIndex, name: &Arc<str>, len: u64) -> Result<(), StoreError> {
        self.io().fill(member, name, len)
    }

    pub fn note_stale_copy(&self, seat: Seat, store: &StoreRef) -> Result<bool, MembersError> {
        self.changes().note_stale_copy(seat, store)
    }

    pub fn check_seat(&self, seat: Seat, store: &StoreRef) -> Result<(), MembersError> {
        self.changes().check(seat, store)
    }

    pub fn note_refusal(&self, member: MemberIndex, error: &MembersError) {
        self.changes().note_refusal(member, error);
    }

    pub fn note_refused(&self, member: MemberIndex, store: &StoreRef, error: &MembersError) {
        self.changes().note_refused(member, store, error);
    }

    pub fn note_flapping(&self, member: MemberIndex) {
        self.changes().note_flapping(member);
    }

    pub fn set_leaving(&self, member: MemberIndex, is_leaving: bool) -> Result<(), MembersError> {
        self.changes().set_draining(member, is_leaving)
    }

    pub fn set_leaving_to(
        &self,
        member: MemberIndex,
        heir: MemberIndex,
    ) -> Result<(), MembersError> {
        self.changes().set_draining_to(member, heir)
    }

    pub fn let_go(&self, member: MemberIndex) -> Result<bool, MembersError> {
        self.changes().remove_drained(member)
    }

    pub fn clear(&self, store: &StoreRef) {
        self.changes().clear(store);
    }

    pub fn note_put_back(&self, member: MemberIndex) {
        self.stale_copies().note(member);
    }

    pub fn restore_put_back(&self, members: impl IntoIterator<Item = MemberIndex>) {
        self.stale_copies().restore(members);
    }

    pub fn put_back(&self) -> PutBack {
        self.stale_copies().unverified()
    }

    pub fn set_verified(&self, verified: &PutBack) {
        self.stale_copies().set_verified(verified);
    }

    pub fn note_record(&self, members: &[MemberIndex], life: Life, lsn: Lsn) {
        self.acknowledged().note(members, life, lsn);
    }

    pub fn note_commit_without_record(&self, members: &[MemberIndex]) {
        self.acknowledged().note_commit_without_record(members);
    }

    pub fn has_acknowledged(&self, member: MemberIndex, lsn: Lsn) -> bool {
        self.acknowledged().has(member, lsn)
    }

    pub fn claimed(&self) -> &BTreeMap<MemberIndex, bool> {
        self.recovered()
    }

    pub fn call<T: Send + 'static>(
        &self,
        member: MemberIndex,
        action: &'static str,
        work: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.io().call(member, action, work)
    }

    pub fn call_briefly<T: Send + 'static>(
        &self,
        member: MemberIndex,
        action: &'static str,
        work: impl FnOnce(&dyn Store) -> Result<T, StoreError> + Send + 'static,
    ) -> Result<T, StoreError> {
        self.io().call_hedged(member, action, work)
    }

    pub fn join<G, E: From<MembersError>>(
        &self,
        seat: Seat,
        store: &StoreRef,
        belongings: &Belongings,
        heed: impl FnOnce(MemberIndex, Vec<SegmentId>) -> Result<G, E>,
    ) -> Result<MemberIndex, E> {
        self.changes().join(seat, store, belongings, heed)
    }

    pub fn bereft(stores: &[StoreRef], executor: &Executor) -> Result<Bereft, MembersError> {
        Bereft::find(stores, executor)
    }
}
