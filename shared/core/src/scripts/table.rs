//! The table of all scripts: the file of each, and the roles that run it.

use crate::redis::Script;
use crate::scripts::*;

/// Passes the table to a macro: special and general operations, each with its file and the roles that run it. An `operator`
/// is a user of the command lines.
macro_rules! scripts {
    ($receive:ident) => {
        $receive! {
            special {
                AckPlain = "hot/ack_plain" for consumer;
                MoveDuePlain = "hot/move_due_plain" for manager;
                SendPlain = "hot/send_plain" for producer manager operator callbacks sqs;
                Forget = "maintenance/forget" for manager sqs;
                Heads = "maintenance/heads" for manager;
                NoteSample = "maintenance/note_sample" for manager;
                Observe = "maintenance/observe" for consumer;
                PageOfGarbage = "maintenance/page" for manager operator;
                DropConsumer = "groups/drop_consumer" for manager consumer;
                EnableGarbageHook = "groups/enable_garbage_hook" for consumer;
                FinishGarbageHook = "groups/finish_garbage_hook" for consumer;
                Join = "groups/join" for consumer;
                TakeGarbageHooks = "groups/take_garbage_hooks" for consumer;
                ChangeGarbageJob = "registry/change_garbage_job" for manager operator;
                ChangeToken = "registry/change_token" for manager operator;
                ClaimTopic = "registry/claim_topic" for manager operator sqs;
                Declare = "registry/declare" for producer manager consumer operator;
                Heartbeat = "registry/heartbeat" for manager;
                NoteAction = "registry/note_action" for manager consumer operator sqs;
                NoteCounts = "registry/note_counts" for manager;
                NoteTotal = "registry/note_total" for manager;
                Register = "registry/register" for producer manager consumer operator;
                StartMoveTask = "registry/start_move_task" for sqs;
                RemoveTopic = "removal/remove_topic" for manager operator sqs;
                Unregister = "removal/unregister" for producer manager consumer operator;
                CreateShard = "reshard/create_shard" for operator;
                FinishReshard = "reshard/finish_reshard" for manager;
                MarkRetired = "reshard/mark_retired" for manager operator;
                MergeCounters = "reshard/merge_counters" for manager;
                Redirect = "reshard/redirect" for producer manager consumer operator;
                NoteFires = "schedules/note_fires" for manager operator;
                PauseSchedule = "schedules/pause_schedule" for manager operator;
                PutSchedule = "schedules/put_schedule" for manager operator;
                RemoveSchedule = "schedules/remove_schedule" for manager operator;
                TakeFires = "schedules/take_fires" for manager;
            }
            general {
                Ack = "hot/ack" for consumer;
                MoveDue = "hot/move_due" for manager;
                SendScript = "hot/send" for producer manager operator callbacks sqs;
                Settle = "hot/settle" for consumer;
                AckLate = "change/ack_late" for sqs;
                Hide = "change/hide" for sqs;
                Cancel = "change/cancel" for producer operator sqs;
                Lookup = "change/lookup" for producer manager operator sqs;
                Purge = "change/purge" for manager operator;
                Requeue = "change/requeue" for manager operator sqs;
                Reschedule = "change/reschedule" for producer operator;
                Clean = "maintenance/clean" for manager;
                Reclaim = "maintenance/reclaim" for manager;
                Stats = "maintenance/stats" for manager operator sqs;
                ParkedKeys = "groups/parked_keys" for manager operator;
                Pause = "groups/pause" for manager consumer operator;
                TakeParked = "groups/take_parked" for consumer;
                RemoveGroup = "groups/remove_group" for manager operator;
                Retire = "groups/retire" for manager operator;
                RemoveShard = "removal/remove_shard" for manager;
                DropKeys = "reshard/drop_keys" for manager;
                MigrateIn = "reshard/migrate_in" for manager;
                MigrateOut = "reshard/migrate_out" for manager;
                Examine = "doctor/examine" for manager operator;
                Recount = "doctor/recount" for manager operator;
                Repair = "doctor/repair" for manager operator;
                Walk = "doctor/walk" for manager operator;
            }
        }
    };
}
#[cfg(test)]
pub(super) use scripts;

macro_rules! with_roles {
    (
        special { $($special:ty = $special_file:literal for $($special_role:ident)*;)+ }
        general { $($general:ty = $general_file:literal for $($general_role:ident)*;)+ }
    ) => {
        /// The function that returns each script, and the roles that run it.
        const SCRIPTS: &[(fn() -> &'static Script, &[&str])] = &[
            $((<$special as Operation>::script, &[$(stringify!($special_role)),*]),)+
            $((<$general as General>::script, &[$(stringify!($general_role)),*]),)+
        ];
    };
}
scripts!(with_roles);

/// Returns the scripts that a role runs.
pub(crate) fn of_role(role: &str) -> Vec<&'static Script> {
    let run = SCRIPTS.iter().filter(|(_, roles)| roles.contains(&role));
    run.map(|(script, _)| script()).collect()
}
