/* SPDX-License-Identifier: GPL-2.0-only */
/* Trace events: /sys/kernel/tracing/events/twofold_apf. */
#undef TRACE_SYSTEM
#define TRACE_SYSTEM twofold_apf

#if !defined(TWOFOLD_APF_TRACE_H) || defined(TRACE_HEADER_MULTI_READ)
#define TWOFOLD_APF_TRACE_H

#include <linux/tracepoint.h>

/* A page is absent, and the task that was interrupted was parked or not. */
TRACE_EVENT(twofold_apf_not_present,
	TP_PROTO(u32 token, u64 pc, u64 sequence, bool is_parked),
	TP_ARGS(token, pc, sequence, is_parked),
	TP_STRUCT__entry(
		__field(u32, token)
		__field(u64, pc)
		__field(u64, sequence)
		__field(bool, is_parked)
	),
	TP_fast_assign(
		__entry->token = token;
		__entry->pc = pc;
		__entry->sequence = sequence;
		__entry->is_parked = is_parked;
	),
	TP_printk("token=%#x pc=%#llx sequence=%llu %s", __entry->token,
		  __entry->pc, __entry->sequence,
		  __entry->is_parked ? "parked" : "declined")
);

/* A token is ready, and this many tasks woke. */
TRACE_EVENT(twofold_apf_ready,
	TP_PROTO(u32 token, unsigned int woken),
	TP_ARGS(token, woken),
	TP_STRUCT__entry(
		__field(u32, token)
		__field(unsigned int, woken)
	),
	TP_fast_assign(
		__entry->token = token;
		__entry->woken = woken;
	),
	TP_printk("token=%#x woken=%u", __entry->token, __entry->woken)
);

#endif

#undef TRACE_INCLUDE_PATH
#define TRACE_INCLUDE_PATH .
#undef TRACE_INCLUDE_FILE
#define TRACE_INCLUDE_FILE trace
#include <trace/define_trace.h>
