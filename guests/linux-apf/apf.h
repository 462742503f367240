/* SPDX-License-Identifier: GPL-2.0-only */
/*
 * What the two halves of the module share: device.c finds the hypervisor and
 * enables each vCPU, fault.c parks and wakes tasks.
 */
#ifndef TWOFOLD_APF_H
#define TWOFOLD_APF_H

#include <linux/arm-smccc.h>
#include <linux/completion.h>
#include <linux/irqreturn.h>
#include <linux/spinlock.h>
#include <linux/task_work.h>

#include "protocol.h"

/* A task that is parked. */
struct apf_slot {
	/* What the task does before it returns to user mode. */
	struct callback_head work;
	/* Completed when the token is ready. */
	struct completion ready;
	struct apf_cpu *cpu;
	/* What the task waits for; no token: nothing any more. */
	u32 token;
	/* The work is queued or runs. */
	bool is_used;
};

/* A vCPU. */
struct apf_cpu {
	/* Used on this vCPU only. */
	struct twofold_apf_area *area;
	/* The sequence number of the last announcement. Used on this vCPU only. */
	u64 handled;
	/* Used on this vCPU only. */
	bool is_enabled;
	/* Orders this vCPU with its parked tasks, which may run on others. */
	raw_spinlock_t lock;
	/* Under the lock. */
	struct apf_slot slots[TWOFOLD_APF_TOKENS_MAX];
	/* Written on this vCPU only. */
	u64 announced;
	u64 parked;
	u64 declined;
	u64 woken;
};

static inline long apf_call(u32 function, u64 first, u64 second)
{
	struct arm_smccc_res res;

	arm_smccc_1_1_hvc(function, first, second, &res);
	return res.a0;
}

void apf_init_cpu(struct apf_cpu *cpu, struct twofold_apf_area *area);
irqreturn_t apf_interrupt(int irq, void *cpu);
void apf_wake(struct apf_cpu *cpu, u32 token);
void apf_wait_for_tasks(void);

#endif
