/** A client for Lisa, a delayed message queue on Redis Streams. */

export { Lisa } from "./client.js";
export { Delivery } from "./delivery.js";
export type {
  Backfilled, BackfillPeriod, Cancelled, CancelledKey, ChangedToken, Condition, FailedAttempt, GarbageReason, GroupPaused, GroupRetired, GroupState,
  GroupStats, LisaOptions, ListedMessage, ListedSchedule, ListOptions, Message, MessagePage, NewMessage, OwnToken, PageOptions, PutCondition,
  QuotaUse, Removal, Requeued, RescheduledKey, RotationStep, Schedule, SchedulePage, SchedulePaused, ScheduleRun, SendOptions, Sent, Token, TokenPage,
  Topic, TopicDetails, TopicList, TopicPaused, TopicRemoval, TopicStats,
} from "./client.js";
export type { Ended, PullOptions } from "./delivery.js";
export type { Outcome } from "./outcome.js";
export type { Handler, WorkOptions } from "./work.js";
export { LisaError, Problem, TransportError } from "./errors.js";
export type { Code } from "./errors.js";
export { InvalidSignature, verifyWebhook } from "./webhook.js";
