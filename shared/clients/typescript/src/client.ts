/** The client. */

import { counts, flags, nothing, object, readKey, readResults, withItems, withList, withPayload } from "./answers.js";
import { type Attempt, Batcher, Item, sendInOrder } from "./batch.js";
import { toBase64, uuidV7 } from "./bytes.js";
import { Delivery, type DeliveryCalls, type Ended, type PullOptions, runsOf, wrongCount } from "./delivery.js";
import { LisaError } from "./errors.js";
import { type HttpOptions, type Request, type Urls, exchange, isToken } from "./http.js";
import { type Body, type Outcome, settleItem, texts } from "./outcome.js";
import { type Duration, type Instant, pause } from "./time.js";
import { type Handler, type SettledAndPulled, type WorkOptions, runWorker } from "./work.js";

/** The longest time limit, in milliseconds: more than a day. */
const MAX_TIMEOUT = 100_000_000;
const encoder = new TextEncoder();
/** The largest limit of a page. */
const MAX_PAGE = 1000;
const REMOVALS = ["drain", "force"];
const GROUP_COUNTS = ["backlog", "parked", "ready", "in_flight", "retry", "garbage", "consumers", "oldest_due_age_ms", "oldest_ready_age_ms"];

/** The configuration of a client. */
export interface LisaOptions extends HttpOptions {
  /** The URL of the gateway, if it differs from the URL of the producer. */
  gateway?: string;
  /** The URL of the manager, if it differs from the URL of the producer. */
  manager?: string;
  /** The maximum number of tries of a request. Default: 5. */
  tries?: number;
}

/** The options of a message. The defaults are those of the topic. */
export interface SendOptions {
  /** The id (idempotency key). By default, a UUID of version 7. */
  id?: string;
  delay?: Duration;
  deliver_at?: Instant;
  key?: string;
  merge_key?: string;
  priority?: number;
  ttl?: Duration;
  expires_at?: Instant;
  max_attempts?: number;
  retry?: Record<string, unknown>;
  /** Replaces the message with this id, if it has not been delivered yet. */
  replace?: string;
  durability?: string;
  even_if_cancelled?: boolean;
  headers?: Record<string, string>;
}

/** A message of a batch: bytes and strings are sent unchanged, and everything else as JSON. */
export type NewMessage = SendOptions & { payload: unknown };

/** A message that was accepted. */
export interface Sent {
  id: string;
  outcome: "waiting" | "ready" | "merged" | "duplicate" | "rescheduled";
  due_at?: string | null;
  ended?: string;
  durability?: string;
}

/** A stored message with its state in each group. `state` is that in the first group that still has it. */
export interface Message extends ListedMessage {
  topic: string;
  max_attempts: number;
  /** Its own retry policy, with the keys of the configuration. */
  retry?: Record<string, unknown>;
  merge_key?: string;
  priority: number;
  expires_at?: string;
  headers: Record<string, string>;
  groups: GroupState[];
  payload: Uint8Array;
}

/** The state of a message in a group, and what it waits for. */
export interface GroupState {
  group: string;
  state: string;
  why: string;
  /** The message that holds its ordering key, if it is parked. */
  holder?: string;
  /** The last failed attempts, up to five, newest first. */
  attempts?: FailedAttempt[];
}

/** A failed attempt of a message. Lisa keeps 200 bytes of an error. */
export interface FailedAttempt {
  at: string;
  outcome: "failed" | "rejected" | "lease_expired";
  consumer?: string;
  error: string;
}

/** A cancelled message. Its payload is missing if it was cancelled before. */
export interface Cancelled {
  id: string;
  headers?: Record<string, string>;
  in_garbage?: string[];
  payload?: Uint8Array;
}

/** The reason for which a message went to garbage. */
export type GarbageReason = "exhausted" | "rejected" | "expired";

/** The options of a list, as in the HTTP interface. */
export interface ListOptions {
  /** Default: `waiting`. */
  state?: Message["state"];
  /** The group. Required if the topic has several, except for waiting messages and for those of a `key`. */
  group?: string;
  /** Lists the messages of this ordering key, in any state; the topic needs `key_index`. With the state `garbage`, a filter. */
  key?: string;
  /** Lists only garbage with this text in its last error, 1 to 200 characters; `#`, `*` and `…` stand for any text. */
  error?: string;
  /** Lists only garbage with this reason. */
  reason?: GarbageReason;
  /** Lists only messages whose time is at or after this one: that of the delivery, or of the move to garbage. */
  from?: Instant;
  /** Lists only messages whose time is before this one. */
  to?: Instant;
  /** Default: `oldest`. */
  order?: "oldest" | "newest";
  /** The maximum number of messages of a page, 1 to 1000. Default: 100. */
  limit?: number;
  /** The `next` of the last page. By default, and with null, the first page. */
  cursor?: string | null | undefined;
}

/** A page of messages. With a filter of garbage, it may be short or empty and still have a `next`. */
export interface MessagePage {
  messages: ListedMessage[];
  /** The cursor of the next page; null on the last one. */
  next: string | null;
}

/** A message of a page, without its payload and options. */
export interface ListedMessage {
  id: string;
  state: "waiting" | "backlog" | "parked" | "ready" | "in_flight" | "retry" | "garbage";
  /** The number of the current or next attempt; in garbage, of attempts made. */
  attempt: number;
  due_at?: string;
  key?: string;
  consumer?: string;
  /** The last error. */
  error?: string;
  reason?: GarbageReason;
  garbage_at?: string;
}

/** The messages of an ordering key that could not be changed. */
interface Unchanged {
  /** The number in garbage. */
  garbage: number;
  /** The number that are ready or in flight: too late. */
  in_flight: number;
  /** The groups that keep copies of changed messages in their garbage. */
  in_garbage: string[];
}

/** The messages of an ordering key that were cancelled. A repeated cancel does not count those of an earlier try. */
export interface CancelledKey extends Unchanged {
  cancelled: number;
}

/** The messages of an ordering key that were rescheduled. */
export interface RescheduledKey extends Unchanged {
  rescheduled: number;
}

/** The messages that were requeued from garbage. */
export interface Requeued {
  /** The number requeued. */
  done: number;
  /** The number of ids that were in the garbage. */
  found: number;
  /** The ids that were not in the garbage. */
  missing: string[];
}

/** A topic with the settings in force. */
export interface Topic {
  topic: string;
  /** It grows with each change of the topic, and goes on if the topic is created again. */
  epoch: number;
  settings: Record<string, unknown>;
  /** All its groups, including those that the settings do not name. */
  groups: string[];
  /** Missing unless it is being removed. */
  removal?: Removal;
  /** True while its number of shards is changed. */
  resharding?: boolean;
}

/** Topics by name. */
export interface TopicList {
  topics: Topic[];
  /** The topics whose settings cannot be read, and the reason. */
  damaged: { topic: string; error: string }[];
}

/** A topic with its settings, groups and counts. */
export interface TopicDetails extends Omit<Topic, "groups" | "resharding"> {
  created_at?: string;
  groups: GroupStats[];
  stats: TopicStats;
}

/** The numbers of messages of a topic, at one instant of each shard. */
export interface TopicStats {
  /** Those that are stored, including garbage (dead letters). Each counts once, for any number of groups. */
  stored: number;
  /** Those that are not yet due. */
  waiting: number;
  next_due?: string;
  /** The age of the oldest message that is due and that no consumer holds, in milliseconds. */
  overdue_ms: number;
  /** The ended ids that are remembered for the `dedup_window`. */
  tombstones: number;
  paused: boolean;
  /** The size of the stored messages, if `max_bytes` limits it. */
  bytes?: number;
  /** True if a shard refuses sends. */
  full?: boolean;
  /** Those that are still on retiring shards, while the number of shards is changed. */
  migrating?: number;
  /** The counters since the topic was created. */
  counters: Record<string, number>;
  /** It must be 0. */
  conservation_error: number;
}

/** The numbers of messages of a group by state, at one instant of each shard. */
export interface GroupStats {
  group: string;
  /** Those that are due, and held back by a limit or a pause. */
  backlog: number;
  /** Those that are due, behind an earlier message of their ordering key. */
  parked: number;
  ready: number;
  in_flight: number;
  retry: number;
  garbage: number;
  /** The consumers that have reported within the last 30 s. */
  consumers: number;
  /** The age of the oldest message that is due and that no consumer holds, in milliseconds since its due time. */
  oldest_due_age_ms: number;
  /** The age of the first ready message that no consumer has read, in milliseconds since its due time. */
  oldest_ready_age_ms: number;
  /** False if the settings do not name it; missing if it belongs to one running consumer. */
  configured?: boolean;
  paused?: boolean;
  /** Missing unless the group is being removed. */
  retiring?: "drain" | "drop";
  /** True if it belongs to one running consumer. */
  instance?: boolean;
  /** True if messages are ready, and no consumer has ever read one. */
  never_read?: boolean;
}

/** The condition of a change. Otherwise, the call throws a `Problem` with the code `precondition_failed`. */
export interface Condition {
  /** Changes it only if it has this `epoch` or `version`. */
  if_match?: number | undefined;
}

/** The condition of a put. What exists and is already as it says succeeds in any case. */
export interface PutCondition extends Condition {
  /** Changes nothing that exists. */
  create_only?: boolean | undefined;
}

/** The treatment of the messages of a topic that is removed: they are delivered first, or removed, too. */
export type Removal = "drain" | "force";

/** A topic that is being removed. */
export interface TopicRemoval {
  topic: string;
  /** A removal by force stays one. */
  removal: Removal;
  /** The number of messages that it still stores. */
  stored: number;
}

/** A topic that was paused or resumed. */
export interface TopicPaused {
  topic: string;
  paused: boolean;
  /** False if it was in that state already. */
  changed: boolean;
}

/** A group that was paused or resumed. */
export interface GroupPaused extends TopicPaused {
  group: string;
}

/** A group that was drained, dropped or kept. */
export interface GroupRetired {
  topic: string;
  group: string;
  /** Null if it is kept. */
  retiring: "drain" | "drop" | null;
  /** False if it was in that state already. */
  changed: boolean;
  /** The number of messages that it still has. */
  left: number;
  /** True if the settings of the topic name it: the next start of a manager, or change of the topic, creates it again. */
  configured?: boolean;
  /** True if no group of the topic gets messages: due ones wait until one does. */
  messages_wait?: boolean;
}

/** The options of a list by name. */
export interface PageOptions {
  /** The start of the names. By default, all names. */
  prefix?: string | undefined;
  /** The maximum number of a page, 1 to 1000. Default: 100. */
  limit?: number | undefined;
  /** The `next` of the last page. By default, and with null, the first page. */
  cursor?: string | null | undefined;
}

/** A page of schedules by name. With large definitions, it has fewer than its limit. */
export interface SchedulePage {
  schedules: ListedSchedule[];
  /** The cursor of the next page; null on the last one. */
  next: string | null;
  /** The schedules whose definition cannot be read, and the reason. */
  damaged: { schedule: string; error: string }[];
}

/** A schedule of a page, and its progress. */
export interface ListedSchedule {
  schedule: string;
  topic: string;
  cron: string;
  time_zone: string;
  /** True if the configuration of the manager declares it. */
  declared_in_file: boolean;
  /** The newest of its times for which a message was sent, possibly ahead of that time. */
  sent_until?: string | null;
  /** Its next time, unless it is paused. */
  next?: string | null;
  /** The number of its times for which no message was sent because no manager was available, or because the topic refused it. */
  missed?: number;
  /** The newest of those. */
  newest_missed?: string;
  paused_since?: string;
  /** The error of its last send, if that failed, and its time. */
  error?: string;
  error_at?: string;
}

/** A schedule with its definition. */
export interface Schedule extends ListedSchedule {
  /** It grows with each change of the definition. Missing if the configuration of the manager declares the schedule. */
  version?: number;
  definition: Record<string, unknown>;
  /** Its next five times, whether it is paused or not. */
  next_times: string[];
  /** What its author may not expect: days that some months do not have, and clock changes that skip or repeat a time. */
  warnings: string[];
}

/** A period of the past. */
export interface BackfillPeriod {
  /** Its first time. */
  from: Instant;
  /** Its end, which is not part of it. Default: now. */
  to?: Instant;
  /** Counts the times, and sends nothing. */
  dry_run?: boolean;
}

/** The messages that a backfill has sent. */
export interface Backfilled {
  schedule: string;
  topic: string;
  /** The number of times of this call, up to 1,000. */
  times: number;
  /** The number of messages that were sent; 0 with `dry_run`. */
  sent: number;
  /** The number of times for which there was a message already, also of an earlier try; 0 with `dry_run`. */
  duplicates: number;
  /** The `from` of the next call; null at the end. */
  next: string | null;
}

/** A schedule that was paused or resumed. */
export interface SchedulePaused {
  schedule: string;
  paused: boolean;
  /** False if it was in that state already. */
  changed: boolean;
}

/** The message that a run of a schedule has sent. */
export interface ScheduleRun {
  schedule: string;
  topic: string;
  id: string;
  /** False if an earlier run has sent it in the same second. */
  sent: boolean;
}

/** A token, without its secret. */
export interface Token {
  token: string;
  scopes: string[];
  /** True if the configuration of the manager declares it. */
  declared_in_file: boolean;
  /** The topics that it reaches; missing for all. */
  topics?: string[];
  /** The groups that it reaches; missing for all. */
  groups?: string[];
  /** The schedules that it reaches; missing for those whose names are in `topics`. */
  schedules?: string[];
  /** The time from which it is refused. */
  expires?: string;
  has_expired: boolean;
  /** The number of messages that it may send in a second, in each process. */
  sends_per_second?: number;
  /** The largest number of topics that it reaches. As for each quota, missing for any. */
  max_topics?: number;
  /** The largest number of streams of these topics: one for each group on each shard. */
  max_streams?: number;
  /** The largest sum of `max_messages` of these topics. */
  max_messages?: number;
  /** The largest sum of `max_bytes` of these topics. */
  max_bytes?: number;
  /** The largest number of stored schedules with the names that it reaches. */
  max_schedules?: number;
  /** True while its previous secret is accepted as well. */
  is_rotating: boolean;
  /** The time at which its previous secret was last used, if that is known. */
  previous_used?: string;
  /** It grows with each change of the token. Missing if the configuration of the manager declares it, and in one's own token. */
  version?: number;
  created?: string;
  created_by?: string;
  /** True if a token of this name is also stored; that of the configuration is accepted. */
  hides_stored?: boolean;
}

/** The token of a client, and what is used of its quotas. */
export interface OwnToken extends Token {
  used: QuotaUse;
}

/** The used part of each quota of a token, also by other tokens that reach the same names; missing without the quota. */
export interface QuotaUse {
  topics?: number;
  streams?: number;
  /** The sum of `max_messages` of the topics. One without it counts as an equal part, and one that holds more as what it holds. */
  messages?: number;
  /** The same for `max_bytes`. */
  bytes?: number;
  schedules?: number;
}

/** A page of tokens by name. */
export interface TokenPage {
  tokens: Token[];
  /** The cursor of the next page; null on the last one. */
  next: string | null;
  /** The tokens whose record cannot be read, and the reason. They are not accepted. */
  damaged: { token: string; error: string }[];
}

/** A token that was created by call. */
export interface ChangedToken {
  token: string;
  /** It changes whenever the token does. */
  version: number;
  scopes: string[];
  /** True while its previous secret is accepted as well. */
  is_rotating: boolean;
  /** The bearer token, if this call has generated it. No later call returns it. */
  secret?: string;
}

/** A step of the replacement of a token's secret. */
export type RotationStep = "begin" | "finish" | "cancel";

const STEPS: readonly unknown[] = ["begin", "finish", "cancel"];

/** A client of one relay. */
export class Lisa {
  readonly #urls: Urls;
  readonly #options: LisaOptions;
  /** By topic; only those in use. */
  readonly #sends = new Map<string, Batcher<Sent>>();
  readonly #settle: Attempt<Ended>;
  readonly #settles: Batcher<Ended>;
  readonly #extends: Batcher<Ended>;

  /** Creates a client. The default address is that of `lisa-manager dev`. Throws `TypeError` for wrong options. */
  constructor(url = "http://127.0.0.1:7812", options: LisaOptions = {}) {
    const { gateway = url, manager = url, token, timeout = 1, tries = 1 } = options;
    for (const [name, one] of Object.entries({ url, gateway, manager })) {
      if (!/^https?:\/\/[^/]/.test(one)) throw new TypeError(`${name}: ${one} is not a URL with http or https`);
    }
    if (!Number.isFinite(timeout) || timeout <= 0 || timeout > MAX_TIMEOUT) throw new TypeError(`timeout: ${timeout} is not a number of milliseconds`);
    if (!Number.isInteger(tries) || tries < 1) throw new TypeError(`tries: ${tries} is less than 1`);
    if (token !== undefined && typeof token !== "function" && !isToken(token)) throw new TypeError("token: is empty, or has invalid characters");
    const trim = (text: string) => text.replace(/\/+$/, "");
    this.#urls = { producer: trim(url), gateway: trim(gateway), manager: trim(manager) };
    this.#options = options;
    // As in all calls, the tokens are in the body, because URLs are logged.
    this.#settle = this.#attempt<Ended>("/v1/deliveries:settle", "gateway");
    this.#settles = new Batcher(this.#settle, this.#tries());
    this.#extends = new Batcher(this.#attempt<Ended>("/v1/deliveries:extend", "gateway"), this.#tries());
  }

  /**
   * Sends a message. Throws a `LisaError`; to repeat the send, use its `id`. Sends that are made while others are in flight share
   * requests, and may be stored in any order; `await` each if the order matters.
   */
  async send(topic: string, payload: unknown, options: SendOptions = {}): Promise<Sent> {
    const message = item({ ...options, payload });
    let sends = this.#sends.get(topic);
    if (!sends) {
      for (const [name, one] of this.#sends) if (one.isIdle) this.#sends.delete(name);
      sends = new Batcher(this.#attempt<Sent>(batchPath(topic), "producer"), this.#tries());
      this.#sends.set(topic, sends);
    }
    return sends.add(message);
  }

  /** Sends any number of messages in order, in batches. Returns a result for each: its receipt, or its error. */
  async sendMany(topic: string, messages: Iterable<NewMessage>): Promise<(Sent | LisaError)[]> {
    return sendInOrder(Array.from(messages, item), this.#attempt<Sent>(batchPath(topic), "producer"), this.#tries());
  }

  /** Looks up a message that is still stored. `key` finds a message with an id of your own without querying every shard. */
  async get(topic: string, id: string, key?: string): Promise<Message> {
    const request = { method: "GET", path: path("topics", topic, "messages", id), headers: keyHeader(key), hasPayloads: true };
    return this.#call(request, (body) => withPayload(object(body, "id")) as unknown as Message);
  }

  /**
   * Lists messages of one state or ordering key, a page at a time. By default, the waiting ones. Pass `next` of a page as the
   * `cursor` of the next call, with the same other options.
   */
  async list(topic: string, options: ListOptions = {}): Promise<MessagePage> {
    for (const name of ["group", "key"] as const) if (options[name] !== undefined) check(name, options[name]);
    const given = Object.entries(texts(options)).filter(([, value]) => value !== null);
    const query = new URLSearchParams(given.map(([name, value]) => [name, String(value)]));
    const request = { method: "GET", path: `${path("topics", topic, "messages")}?${query}`, to: "manager" as const };
    return this.#call(request, (body) => {
      const messages = itemsOf(body, "messages", options.limit);
      return { messages: messages.map((one) => counts(object(one, "id", "state"), "attempt")), next: nextOf(object(body)) } as unknown as MessagePage;
    });
  }

  /** Cancels a message that has not been delivered yet. */
  async cancel(topic: string, id: string, key?: string): Promise<Cancelled> {
    const request = { method: "DELETE", path: path("topics", topic, "messages", id), headers: keyHeader(key), hasPayloads: true };
    return this.#call(request, (body) => withPayload(object(body, "id")) as unknown as Cancelled);
  }

  /** Cancels all messages of an ordering key that have not been delivered yet. The topic needs `key_index`. */
  async cancelKey(topic: string, key: string): Promise<CancelledKey> {
    return this.#call(keyRequest("DELETE", topic, key), (body) => readKey<CancelledKey>(body, "cancelled"));
  }

  /** Reschedules a message that has not been delivered yet. */
  async reschedule(topic: string, id: string, due: { delay: Duration } | { deliver_at: Instant }, key?: string): Promise<Sent> {
    const request = { method: "PATCH", path: path("topics", topic, "messages", id), content: JSON.stringify(texts(due)), headers: keyHeader(key) };
    return this.#call(request, (body) => object(body, "id", "outcome") as unknown as Sent);
  }

  /** Reschedules all messages of an ordering key that have not been delivered yet. The topic needs `key_index`. */
  async rescheduleKey(topic: string, key: string, due: { delay: Duration } | { deliver_at: Instant }): Promise<RescheduledKey> {
    const body = texts(due);
    if ("delay" in body && "deliver_at" in body) throw new TypeError("deliver_at: cannot be combined with delay");
    const request = { ...keyRequest("PATCH", topic, key), content: JSON.stringify(body) };
    return this.#call(request, (answer) => readKey<RescheduledKey>(answer, "rescheduled"));
  }

  /** Delivers now a message that is waiting for its due time or for its next attempt. */
  async deliverNow(topic: string, id: string, key?: string): Promise<Sent> {
    const request = { method: "POST", path: path("topics", topic, "messages", id, "deliver-now"), headers: keyHeader(key) };
    return this.#call(request, (body) => object(body, "id", "outcome") as unknown as Sent);
  }

  /**
   * Requeues messages from garbage (dead letters) of a group: delivers them again, with their attempts reset. If a try has no
   * answer, the next one may report the ids that it has requeued as missing.
   */
  async requeue(topic: string, ids: readonly string[], group = "default"): Promise<Requeued> {
    if (!Array.isArray(ids) || ids.length === 0) throw new TypeError("ids: is not an array, or is empty");
    for (const id of ids) check("ids", id);
    const where = path("topics", topic, "groups", group, "garbage", "requeue");
    const request = { method: "POST", path: where, content: JSON.stringify({ ids }), to: "manager" as const };
    return this.#call(request, (body) => withList("missing", counts(body, "done", "found")) as unknown as Requeued);
  }

  /** Lists all topics by name, or those whose name starts with `prefix`, with their settings. */
  async listTopics(prefix?: string): Promise<TopicList> {
    // Up to 10,000 topics.
    const request = { method: "GET", path: `/v1/topics${queryOf({ prefix })}`, to: "manager" as const, hasPayloads: true };
    return this.#call(request, (body) => {
      const { topics, damaged } = withList("damaged", withItems("topics", object(body))) as { topics: unknown[]; damaged: unknown[] };
      return { topics: topics.map(readTopic), damaged: damaged.map((one) => object(one, "topic", "error")) } as unknown as TopicList;
    });
  }

  /** Returns a topic with its settings, groups and counts. Throws a `Problem` with the code `unknown_topic` if there is none. */
  async getTopic(topic: string): Promise<TopicDetails> {
    return this.#call({ method: "GET", path: path("topics", topic), to: "manager" }, (body) => {
      const answer = withItems("groups", counts(object(body, "topic"), "epoch"));
      object(answer.settings);
      object(flags(counts(answer.stats, "stored", "waiting", "overdue_ms", "tombstones", "conservation_error"), "paused").counters);
      for (const group of answer.groups as unknown[]) counts(object(group, "group"), ...GROUP_COUNTS);
      return answer as unknown as TopicDetails;
    });
  }

  /**
   * Creates a topic, or replaces its settings: those of `topics.NAME` in the configuration. One that is missing has the value of
   * `topic_defaults` of the manager, and a number of shards stays. Throws a `Problem` with the code `declared_in_file` if the
   * configuration of the manager declares the topic.
   */
  async putTopic(topic: string, settings: Readonly<Record<string, unknown>>, condition: PutCondition = {}): Promise<Topic> {
    if (typeof settings !== "object" || settings === null || Array.isArray(settings)) throw new TypeError("settings: is not an object");
    const request = { method: "PUT", path: path("topics", topic), content: JSON.stringify(settings), to: "manager" as const };
    return this.#call({ ...request, headers: putHeaders(condition) }, readTopic);
  }

  /**
   * Removes a topic: with `drain` once it has delivered its messages, with `force` together with them. From then on, it accepts no
   * new messages. Throws a `Problem`: with the code `not_empty` if it has messages and `how` is missing, with `declared_in_file` if
   * the configuration of the manager declares the topic, and with `unknown_topic` if there is none, also if an earlier try without
   * an answer has removed it.
   */
  async removeTopic(topic: string, how?: Removal, condition: Condition = {}): Promise<TopicRemoval> {
    if (how !== undefined && !REMOVALS.includes(how)) throw new TypeError(`how: ${String(how)} is neither drain nor force`);
    const query = how === undefined ? "" : `?how=${how}`;
    const request = { method: "DELETE", path: path("topics", topic) + query, to: "manager" as const };
    return this.#call({ ...request, headers: conditionHeaders(condition) }, (body) => counts(object(body, "topic", "removal"), "stored") as unknown as TopicRemoval);
  }

  /**
   * Pauses a topic: due messages collect in the backlog of each group. Throws a `Problem` with the code `unknown_topic` if there is
   * none.
   */
  async pauseTopic(topic: string): Promise<TopicPaused> {
    return this.#call(topicRequest(topic, "pause"), (body) => flags(object(body, "topic"), "paused", "changed") as unknown as TopicPaused);
  }

  /** Resumes a paused topic. Throws a `Problem` with the code `unknown_topic` if there is none. */
  async resumeTopic(topic: string): Promise<TopicPaused> {
    return this.#call(topicRequest(topic, "resume"), (body) => flags(object(body, "topic"), "paused", "changed") as unknown as TopicPaused);
  }

  /**
   * Pauses a group: messages that become due for it collect in its backlog. Other groups are not affected. Throws a `Problem` with the
   * code `not_found` if there is no such group.
   */
  async pauseGroup(topic: string, group: string): Promise<GroupPaused> {
    return this.#call(topicRequest(topic, "groups", group, "pause"), readGroupPaused);
  }

  /** Resumes a paused group. Throws a `Problem` with the code `not_found` if there is no such group. */
  async resumeGroup(topic: string, group: string): Promise<GroupPaused> {
    return this.#call(topicRequest(topic, "groups", group, "resume"), readGroupPaused);
  }

  /**
   * Drains a group: it gets no new messages, and is removed within a minute after its last one is finished. If the configuration of the
   * manager does not declare the topic, its settings then do not name the group any more. Throws a `Problem` with the code `not_found`
   * if there is no such group, also if it is gone since an earlier try without an answer.
   */
  async drainGroup(topic: string, group: string): Promise<GroupRetired> {
    return this.#call(topicRequest(topic, "groups", group, "drain"), readGroupRetired);
  }

  /**
   * Drops the messages of a group, which cannot be undone, and removes it. It drops messages for up to 2 s, and a manager begins to drop
   * those that are left within a minute. For the settings of the topic and the errors, see `drainGroup`.
   */
  async dropGroup(topic: string, group: string): Promise<GroupRetired> {
    return this.#call(topicRequest(topic, "groups", group, "drop"), readGroupRetired);
  }

  /**
   * Cancels a drain or drop: the group gets messages again, except those dropped or due in the meantime. If the configuration of the
   * manager does not declare the topic, its settings name the group again. Throws a `Problem` with the code `not_found` if there is no
   * such group.
   */
  async keepGroup(topic: string, group: string): Promise<GroupRetired> {
    return this.#call(topicRequest(topic, "groups", group, "keep"), readGroupRetired);
  }

  /**
   * Creates a schedule, or replaces its definition: the fields of `schedules.NAME` in the configuration. At each time of its `cron`,
   * the schedule sends a message to its `topic`. A field that is missing has its default. Throws a `Problem`: with the code
   * `unknown_topic` if there is no such topic, and with `declared_in_file` if the configuration of the manager declares the schedule.
   */
  async putSchedule(schedule: string, definition: Readonly<Record<string, unknown>>, condition: PutCondition = {}): Promise<Schedule> {
    if (typeof definition !== "object" || definition === null || Array.isArray(definition)) throw new TypeError("definition: is not an object");
    const request = { ...scheduleRequest("PUT", schedule), content: JSON.stringify(texts(definition)), headers: putHeaders(condition) };
    return this.#call(request, readSchedule);
  }

  /** Lists schedules by name, a page at a time. Pass `next` of a page as the `cursor` of the next call, with the same other options. */
  async listSchedules(options: PageOptions = {}): Promise<SchedulePage> {
    return this.#list("schedule", options, readListedSchedule) as Promise<unknown> as Promise<SchedulePage>;
  }

  /** Returns a schedule with its definition and its next times. Throws a `Problem` with the code `not_found` if there is none. */
  async getSchedule(schedule: string): Promise<Schedule> {
    return this.#call(scheduleRequest("GET", schedule), readSchedule);
  }

  /**
   * Sends a message, due now, for each time of a schedule in a period. A time for which there is a message already, within the
   * `dedup_window` of the topic, is skipped. A call sends up to 1,000 messages: pass `next` of its result as the `from` of the next call.
   * Throws a `Problem`: with the code `not_found` if there is no such schedule, with `unknown_topic` if its topic does not exist, and with
   * `full` if the topic is full.
   */
  async backfillSchedule(schedule: string, { from, to, dry_run }: BackfillPeriod): Promise<Backfilled> {
    if (from === undefined) throw new TypeError("from: is missing");
    const request = { ...scheduleRequest("POST", schedule, "backfill"), content: JSON.stringify(texts({ from, to, dry_run })) };
    return this.#call(request, (body) => {
      const answer = counts(object(body, "schedule", "topic"), "times", "sent", "duplicates");
      return { ...answer, next: nextOf(answer) } as unknown as Backfilled;
    });
  }

  /**
   * Removes a schedule. The messages that it has sent stay. Throws a `Problem`: with the code `declared_in_file` if the configuration
   * of the manager declares the schedule, and with `not_found` if there is none, also if an earlier try without an answer has removed it.
   */
  async removeSchedule(schedule: string, condition: Condition = {}): Promise<void> {
    return this.#call({ ...scheduleRequest("DELETE", schedule), headers: conditionHeaders(condition) }, nothing);
  }

  /** Pauses a schedule: it sends nothing until it is resumed. Throws a `Problem` with the code `not_found` if there is none. */
  async pauseSchedule(schedule: string): Promise<SchedulePaused> {
    return this.#call(scheduleRequest("POST", schedule, "pause"), readPaused);
  }

  /**
   * Resumes a paused schedule. It does not send for the times that have passed. Throws a `Problem` with the code `not_found` if there
   * is none.
   */
  async resumeSchedule(schedule: string): Promise<SchedulePaused> {
    return this.#call(scheduleRequest("POST", schedule, "resume"), readPaused);
  }

  /**
   * Sends a message of a schedule now, also if it is paused. Two runs in the same second send one message. A failed run is not
   * repeated. Throws a `Problem`: with the code `not_found` if there is no such schedule, and with `unknown_topic` if its topic does
   * not exist.
   */
  async runSchedule(schedule: string): Promise<ScheduleRun> {
    // A repeat in a later second would send a second message: the caller decides.
    return this.#try(scheduleRequest("POST", schedule, "run"), (body) => flags(object(body, "schedule", "topic", "id"), "sent") as unknown as ScheduleRun);
  }

  /**
   * Returns the token of the client: its scopes, what it reaches, its quotas and what is used of them. Needs a token with any scope.
   * Throws a `Problem` with the code `not_found` if no tokens are configured.
   */
  async ownToken(): Promise<OwnToken> {
    return this.#call({ method: "GET", path: path("token"), to: "manager" }, (body) => {
      const answer = readStoredToken(body);
      object(answer.used);
      return answer as unknown as OwnToken;
    });
  }

  /**
   * Lists tokens by name, without their secrets, a page at a time. Pass `next` of a page as the `cursor` of the next call, with the same
   * other options. Needs the scope `tokens`.
   */
  async listTokens(options: PageOptions = {}): Promise<TokenPage> {
    return this.#list("token", options, readStoredToken) as Promise<unknown> as Promise<TokenPage>;
  }

  /** Returns a token without its secret. Needs the scope `tokens`. Throws a `Problem` with the code `not_found` if there is none. */
  async getToken(token: string): Promise<Token> {
    return this.#call(tokenRequest("GET", token), (body) => readStoredToken(body) as unknown as Token);
  }

  /**
   * Creates a token, or replaces its permissions. Its fields are those of `PUT /v1/tokens/{token}`. The manager generates the `secret` of
   * a new token, unless there is a `sha256`, and only this call returns it. A failed call is not repeated, because a repeat would not
   * return the secret: rotate the token then. Needs the scope `tokens`. Throws a `Problem` with the code `declared_in_file` if the
   * configuration of the manager declares the token.
   */
  async putToken(token: string, definition: Readonly<Record<string, unknown>>, condition: PutCondition = {}): Promise<ChangedToken> {
    if (typeof definition !== "object" || definition === null || Array.isArray(definition)) throw new TypeError("definition: is not an object");
    const content = JSON.stringify(texts(definition));
    return this.#try({ ...tokenRequest("PUT", token), content, headers: putHeaders(condition) }, readToken);
  }

  /**
   * Replaces the secret of a token: `begin` returns a new one, and the previous one is accepted as well; `finish` accepts only the new one, and
   * `cancel` only the previous one. A failed call is not repeated. If the new secret is lost, cancel and begin again. Throws a `Problem`: with
   * the code `busy` if a rotation has begun already, with `declared_in_file` if the configuration of the manager declares the token, and
   * with `not_found` if there is none.
   */
  async rotateToken(token: string, step: RotationStep = "begin"): Promise<ChangedToken> {
    if (!STEPS.includes(step)) throw new TypeError(`step: ${String(step)} is neither begin, finish nor cancel`);
    return this.#try({ ...tokenRequest("POST", token, "rotate"), content: JSON.stringify({ step }) }, readToken);
  }

  /**
   * Removes a token: no process accepts it a few seconds later. Throws a `Problem`: with the code `declared_in_file` if the configuration of
   * the manager declares the token, and with `not_found` if there is none, also if an earlier try without an answer has removed it.
   */
  async removeToken(token: string, condition: Condition = {}): Promise<void> {
    return this.#call({ ...tokenRequest("DELETE", token), headers: conditionHeaders(condition) }, nothing);
  }

  /** Pulls messages; none if no message became ready in time. */
  async pull(topic: string, options: PullOptions = {}): Promise<Delivery[]> {
    return this.#pull(topic, options, this);
  }

  /** Settles a delivery by its token. */
  async settle(token: string, outcome: Outcome): Promise<Ended> {
    return this.#settles.add(new Item(settleItem(token, outcome)));
  }

  /** Settles many deliveries, in batches. Returns a result for each, in order: its outcome, or its error. */
  async settleMany(items: Iterable<{ token: string } & Outcome>): Promise<(Ended | LisaError)[]> {
    const all = Array.from(items, ({ token, ...outcome }) => new Item(settleItem(token, outcome)));
    return sendInOrder(all, this.#settle, this.#tries());
  }

  /** Replaces the lease of a delivery with a new one that starts now; by default the topic's. */
  async extend(token: string, lease?: Duration): Promise<Ended> {
    return this.#extends.add(new Item(texts({ token, lease })));
  }

  /**
   * Pulls messages and runs a handler for each, until the signal is aborted. Acknowledges a message when its handler returns, and reports
   * a failed attempt when it throws. A handler can also return an outcome. The lease is extended while it runs; if it is lost,
   * the `signal` of the delivery is aborted. While pulls fail with a retryable error, it retries. Throws errors that a retry cannot fix.
   * Throws a `TypeError` for wrong arguments, before the first pull.
   */
  async work(topic: string, handler: Handler, options: WorkOptions = {}): Promise<void> {
    const calls = {
      pull: (pull: PullOptions, of: DeliveryCalls) => this.#pull(topic, pull, of),
      settle: this.#settle,
      settleAndPull: (items: readonly Item[], pull: PullOptions, of: DeliveryCalls) => this.#settleAndPull(topic, items, pull, of),
      extend: (token: string, lease?: Duration) => this.extend(token, lease),
      tries: this.#tries(),
    };
    await runWorker(calls, topic, handler, options);
  }

  /** Lists schedules or tokens. */
  async #list(kind: "schedule" | "token", { prefix, limit, cursor }: PageOptions, read: (body: unknown) => Body): Promise<Body> {
    const request = { method: "GET", path: `${path(`${kind}s`)}${queryOf({ prefix, limit, cursor })}`, to: "manager" as const };
    return this.#call(request, (body) => {
      const { damaged } = withList("damaged", object(body)) as { damaged: unknown[] };
      const items = itemsOf(body, `${kind}s`, limit).map(read);
      return { [`${kind}s`]: items, next: nextOf(object(body)), damaged: damaged.map((one) => object(one, kind, "error")) };
    });
  }

  async #pull(topic: string, { group = "default", wait = 20_000, signal, ...options }: PullOptions, of: DeliveryCalls): Promise<Delivery[]> {
    for (const name of ["max", "max_per_key", "max_keys"] as const) {
      const wrong = options[name] === undefined ? undefined : wrongCount(name, options[name]);
      if (wrong !== undefined) throw new TypeError(wrong);
    }
    const content = JSON.stringify(texts({ ...options, wait }));
    const where = path("topics", topic, "groups", group, "pull");
    const request = { method: "POST", path: where, content, to: "gateway" as const, hasPayloads: true, wait: 30_000, signal };
    // A repeated pull could leave the messages of the first one to their lease: the caller decides.
    return this.#try(request, (answer) => readDeliveries(answer, options, of));
  }

  /** Settles, and pulls what is ready now. */
  async #settleAndPull(topic: string, items: readonly Item[], { group = "default", signal: _, ...options }: PullOptions, of: DeliveryCalls): Promise<SettledAndPulled> {
    const query = new URLSearchParams(texts(options) as Record<string, string>);
    const where = `${path("topics", topic, "groups", group, "settle-and-pull")}?${query}`;
    const request = { method: "POST", path: where, content: contentOf(items), to: "gateway" as const, hasPayloads: true };
    return this.#try(request, (answer) => ({
      results: readResults<Ended>(object(answer).results, items.length),
      deliveries: readDeliveries(answer, options, of),
    }));
  }

  /** Returns a function that sends items to a path, once. */
  #attempt<T>(where: string, to: keyof Urls): Attempt<T> {
    return async (items) => {
      try {
        return await this.#try({ method: "POST", path: where, content: contentOf(items), to }, (answer) => readResults<T>(answer, items.length));
      } catch (error) {
        if (error instanceof LisaError) return error;
        throw error;
      }
    };
  }

  /** Sends a request until it has an answer that is no reason to repeat it. */
  async #call<T>(request: Request, read: (body: unknown) => T): Promise<T> {
    for (let attempt = 1; ; attempt++) {
      try {
        return await this.#try(request, read);
      } catch (error) {
        if (!(error instanceof LisaError) || !error.retryable || attempt >= this.#tries()) throw error;
        await pause(attempt, error.retryAfter);
      }
    }
  }

  #try<T>(request: Request, read: (body: unknown) => T): Promise<T> {
    return exchange(this.#urls, request, this.#options, read);
  }

  #tries(): number {
    return this.#options.tries ?? 5;
  }
}

/** Returns a path with escaped parts. */
function path(...parts: string[]): string {
  // `fetch` drops "." and ".." from a URL: the request would be about something else.
  const wrong = parts.findIndex((part: unknown) => typeof part !== "string" || ["", ".", ".."].includes(part));
  if (wrong >= 0) throw new TypeError(`${String(parts[wrong])} is not the name of a topic, group, schedule or token, or the id of a message`);
  return `/v1/${parts.map(encodeURIComponent).join("/")}`;
}

function batchPath(topic: string): string {
  return `${path("topics", topic)}/messages:batch`;
}

/** Returns a request about all messages of an ordering key. */
function keyRequest(method: string, topic: string, key: string): Request {
  check("key", key);
  return { method, path: path("topics", topic, "messages"), headers: keyHeader(key) };
}

/** Returns a request that changes a topic or a group. */
function topicRequest(topic: string, ...verb: string[]): Request {
  return { method: "POST", path: path("topics", topic, ...verb), to: "manager" };
}

/** Returns a request about a schedule. */
function scheduleRequest(method: string, schedule: string, ...verb: string[]): Request {
  return { method, path: path("schedules", schedule, ...verb), to: "manager" };
}

/** Returns a request about a token. */
function tokenRequest(method: string, token: string, ...verb: string[]): Request {
  return { method, path: path("tokens", token, ...verb), to: "manager" };
}

function readStoredToken(body: unknown): Body {
  return withItems("scopes", flags(object(body, "token"), "declared_in_file", "has_expired", "is_rotating"));
}

function readToken(body: unknown): ChangedToken {
  const answer = withItems("scopes", flags(counts(object(body, "token"), "version"), "is_rotating"));
  if (answer.secret !== undefined && typeof answer.secret !== "string") throw new TypeError("secret: is not a string");
  return answer as unknown as ChangedToken;
}

function readListedSchedule(body: unknown): Body {
  return flags(object(body, "schedule", "topic", "cron", "time_zone"), "declared_in_file");
}

function readSchedule(body: unknown): Schedule {
  const answer = withItems("warnings", withItems("next_times", readListedSchedule(body)));
  object(answer.definition);
  if (answer.version !== undefined && answer.version !== null) counts(answer, "version");
  return answer as unknown as Schedule;
}

/** Returns the items of a page. */
function itemsOf(body: unknown, name: string, limit = MAX_PAGE): unknown[] {
  const items = withItems(name, object(body))[name] as unknown[];
  if (items.length > limit) throw new TypeError(`${items.length} ${name} for a page of ${limit}`);
  return items;
}

/** Returns where a list goes on; null at its end. */
function nextOf({ next = null }: Body): string | null {
  if (next !== null && typeof next !== "string") throw new TypeError("next is not a string");
  return next;
}

function readPaused(body: unknown): SchedulePaused {
  return flags(object(body, "schedule"), "paused", "changed") as unknown as SchedulePaused;
}

/** Throws `TypeError` if an argument is not a string, or is empty. */
function check(name: string, value: unknown): void {
  if (typeof value !== "string" || value === "") throw new TypeError(`${name}: ${String(value)} is not a string, or is empty`);
}

function readTopic(body: unknown): Topic {
  const answer = withItems("groups", counts(object(body, "topic"), "epoch"));
  object(answer.settings);
  return answer as unknown as Topic;
}

function readGroupPaused(body: unknown): GroupPaused {
  return flags(object(body, "topic", "group"), "paused", "changed") as unknown as GroupPaused;
}

function readGroupRetired(body: unknown): GroupRetired {
  return counts(flags(object(body, "topic", "group"), "changed"), "left") as unknown as GroupRetired;
}

/** Returns the query of a list. Each text in its options must have a character. */
function queryOf(options: Record<string, string | number | null | undefined>): string {
  const given = Object.entries(options).filter(([, value]) => value !== undefined && value !== null);
  for (const [name, value] of given) if (name !== "limit") check(name, value);
  return given.length === 0 ? "" : `?${new URLSearchParams(given.map(([name, value]) => [name, String(value)]))}`;
}

/** Returns the headers of the condition of a put. */
function putHeaders({ create_only: isNew = false, ...condition }: PutCondition): Record<string, string> {
  if (typeof isNew !== "boolean") throw new TypeError(`create_only: ${String(isNew)} is not a boolean`);
  if (isNew && condition.if_match !== undefined) throw new TypeError("create_only: cannot be combined with if_match");
  return isNew ? { "if-none-match": "*" } : conditionHeaders(condition);
}

/** Returns the headers of the condition of a change. */
function conditionHeaders({ if_match: version, ...others }: Condition): Record<string, string> {
  const [unknown] = Object.keys(others);
  if (unknown !== undefined) throw new TypeError(`${unknown}: is not a condition of this call`);
  if (version === undefined) return {};
  if (!Number.isSafeInteger(version) || version < 1) throw new TypeError(`if_match: ${String(version)} is not a version: use an integer of at least 1`);
  return { "if-match": `"${version}"` };
}

function keyHeader(key: string | undefined): Record<string, string> {
  if (key === undefined) return {};
  // `fetch` would drop spaces around it, and the request would be about another key.
  const cannot = /^ | $|[\0-\x1f\x7f]|\p{Surrogate}/u.test(key);
  if (cannot) throw new TypeError("key: cannot be in a header, because it has a control character, half a character, or spaces around it");
  // A header is bytes: those of UTF-8.
  return { "lisa-key": String.fromCharCode(...encoder.encode(key)) };
}

/** Reads the deliveries of a pull. */
function readDeliveries(answer: unknown, { max = 1, max_keys: maxKeys }: PullOptions, of: DeliveryCalls): Delivery[] {
  const deliveries = Array.from(object(answer).deliveries as Body[], (one) => new Delivery(of, one));
  // A worker would run too many handlers.
  if (deliveries.length > max) throw new TypeError(`${deliveries.length} deliveries for a pull of ${max}`);
  const keys = maxKeys === undefined ? 0 : runsOf(deliveries).length;
  if (keys > (maxKeys ?? max)) throw new TypeError(`deliveries of ${keys} keys for a pull of ${maxKeys}`);
  return deliveries;
}

function contentOf(items: readonly Item[]): string {
  return `[${items.map(({ text }) => text).join()}]`;
}

/** Returns a message as an item of a batch. */
function item(message: NewMessage): Item {
  return new Item(bodyOf(message));
}

function bodyOf({ payload, ...options }: NewMessage): Body & { id?: string } {
  const body = texts({ ...options, id: options.id ?? uuidV7() });
  const headers = options.headers ?? {};
  const type = (value: string) => {
    const isGiven = Object.keys(headers).some((name) => name.toLowerCase() === "content-type");
    if (!isGiven) body.headers = { ...headers, "content-type": value };
  };
  if (payload instanceof Uint8Array) {
    type("application/octet-stream");
    return { ...body, payload_base64: toBase64(payload) };
  }
  if (typeof payload === "string") {
    type("text/plain; charset=utf-8");
    return { ...body, payload_text: payload };
  }
  if (payload === undefined) throw new TypeError("payload: undefined is not JSON; send null, a text or bytes");
  type("application/json");
  return { ...body, payload };
}
