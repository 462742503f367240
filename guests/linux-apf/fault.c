// SPDX-License-Identifier: GPL-2.0-only
/*
 * The interrupt of asynchronous page faults: parks the task that touched an
 * absent page, and wakes it when the page is there.
 *
 * G1 to G10 and A1 to A7 are in docs/async-page-fault.md. G1 and the end of
 * interrupt of G10 are the flow handler's, which calls the handler with
 * interrupts masked.
 *
 * A task is parked in steps:
 *
 * P1  The handler takes a slot of this vCPU, and writes the token there.
 * P2  It queues the slot's work on the task. The kernel runs the work before
 *     the task returns to user mode; a task that was interrupted in user mode
 *     holds nothing, and may sleep there.
 * P3  The work waits for the slot's completion, or for a fatal signal.
 * P4  The work gives the slot back. The task repeats its access, or dies.
 *
 * and woken in steps:
 *
 * W1  The handler finds the slot whose task waits for the token.
 * W2  It erases the token there, and completes the completion.
 *
 * No wake is lost. W1 finds what P1 wrote, since both run on the vCPU of the
 * token, P1 before the token can be ready (A2). A completion that comes before
 * P3 ends P3 at once.
 *
 * No completion is of another task. P1, P4 and W1 with W2 hold the vCPU's lock.
 * After P4 the slot has no token, so W1 does not find it.
 *
 * No slot leaks. A task cannot return to user mode, stop or exit before its
 * work has run, and P3 ends by a fatal signal, too. The hypervisor has given
 * the last of its tokens when all slots are taken, or P4 is late; either way
 * the announcement is declined.
 */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/atomic.h>
#include <linux/rcupdate.h>
#include <linux/sched.h>
#include <linux/wait_bit.h>
#include <asm/irq_regs.h>
#include <asm/ptrace.h>

#include "apf.h"

#define CREATE_TRACE_POINTS
#include "trace.h"

/* Slots in use, of all vCPUs. */
static atomic_t apf_used = ATOMIC_INIT(0);

static void apf_work(struct callback_head *work);

void apf_init_cpu(struct apf_cpu *cpu, struct twofold_apf_area *area)
{
	struct apf_slot *slot;

	cpu->area = area;
	raw_spin_lock_init(&cpu->lock);
	for (slot = cpu->slots; slot < cpu->slots + ARRAY_SIZE(cpu->slots); slot++) {
		init_task_work(&slot->work, apf_work);
		init_completion(&slot->ready);
		slot->cpu = cpu;
	}
}

/* P1. */
static struct apf_slot *apf_take_slot(struct apf_cpu *cpu, u32 token)
{
	struct apf_slot *slot;

	guard(raw_spinlock_irqsave)(&cpu->lock);
	for (slot = cpu->slots; slot < cpu->slots + ARRAY_SIZE(cpu->slots); slot++) {
		if (!slot->is_used) {
			slot->is_used = true;
			slot->token = token;
			reinit_completion(&slot->ready);
			atomic_inc(&apf_used);
			return slot;
		}
	}
	return NULL;
}

/* The end of P4. */
static void apf_give_slot(struct apf_slot *slot)
{
	scoped_guard(raw_spinlock_irqsave, &slot->cpu->lock) {
		slot->token = TWOFOLD_APF_NO_TOKEN;
		slot->is_used = false;
	}
	if (atomic_dec_and_test(&apf_used))
		wake_up_var(&apf_used);
}

/* P3 and P4. */
static void apf_work(struct callback_head *work)
{
	struct apf_slot *slot = container_of(work, struct apf_slot, work);

	/* A task that exits does not touch the page any more. */
	if (!(current->flags & PF_EXITING))
		wait_for_completion_killable(&slot->ready);
	apf_give_slot(slot);
}

/* G5: P1 and P2. */
static bool apf_park(struct apf_cpu *cpu, u32 token)
{
	struct apf_slot *slot = apf_take_slot(cpu, token);

	if (!slot)
		return false;
	if (task_work_add(current, &slot->work, TWA_RESUME)) {
		apf_give_slot(slot);
		return false;
	}
	return true;
}

/* G3 to G5. */
static void apf_announced(struct apf_cpu *cpu, u32 token)
{
	struct twofold_apf_area *area = cpu->area;
	struct pt_regs *regs = get_irq_regs();
	u32 level = le32_to_cpu(READ_ONCE(area->level));
	u64 pc = le64_to_cpu(READ_ONCE(area->pc));
	u64 sequence = le64_to_cpu(READ_ONCE(area->sequence));
	bool is_parked = false;

	WRITE_ONCE(area->not_present, cpu_to_le32(TWOFOLD_APF_NO_TOKEN));
	cpu->announced++;
	/* In user mode: so it is not the idle task, and it may sleep (B2). */
	if (sequence > cpu->handled && level == 0 && regs && user_mode(regs) &&
	    instruction_pointer(regs) == pc)
		is_parked = apf_park(cpu, token);
	if (is_parked)
		cpu->parked++;
	else
		cpu->declined++;
	cpu->handled = sequence;
	trace_twofold_apf_not_present(token, pc, sequence, is_parked);
}

/*
 * Wakes the task that waits for the token, or for TWOFOLD_APF_WAKE_ALL all that
 * wait for one of this vCPU's. Runs on this vCPU, with interrupts masked.
 */
void apf_wake(struct apf_cpu *cpu, u32 token)
{
	struct apf_slot *slot;
	unsigned int woken = 0;

	scoped_guard(raw_spinlock, &cpu->lock) {
		for (slot = cpu->slots; slot < cpu->slots + ARRAY_SIZE(cpu->slots); slot++) {
			if (slot->token == TWOFOLD_APF_NO_TOKEN)
				continue;
			if (slot->token != token && token != TWOFOLD_APF_WAKE_ALL)
				continue;
			slot->token = TWOFOLD_APF_NO_TOKEN;
			complete(&slot->ready);
			woken++;
			if (token != TWOFOLD_APF_WAKE_ALL)
				break;
		}
	}
	cpu->woken += woken;
	trace_twofold_apf_ready(token, woken);
}

irqreturn_t apf_interrupt(int irq, void *data)
{
	struct apf_cpu *cpu = data;
	struct twofold_apf_area *area = cpu->area;
	u32 token;
	long answer;

	token = le32_to_cpu(READ_ONCE(area->not_present)); /* G2 */
	if (token != TWOFOLD_APF_NO_TOKEN)
		apf_announced(cpu, token);
	for (;;) {
		token = le32_to_cpu(READ_ONCE(area->ready)); /* G6 */
		if (token == TWOFOLD_APF_NO_TOKEN)
			break;
		/* G7 */
		WRITE_ONCE(area->ready, cpu_to_le32(TWOFOLD_APF_NO_TOKEN));
		apf_wake(cpu, token); /* G8 */
		answer = apf_call(TWOFOLD_APF_ACKNOWLEDGE, token, 0); /* G9 */
		if (answer != TWOFOLD_APF_SUCCESS)
			pr_warn_ratelimited("acknowledging %#x returned %ld\n", token, answer);
	}
	return IRQ_HANDLED;
}

/*
 * Waits until no task executes code of this module. All vCPUs are disabled, so
 * all tasks are awake, and none is parked any more.
 */
void apf_wait_for_tasks(void)
{
	wait_var_event(&apf_used, atomic_read(&apf_used) == 0);
	/* The last instructions of P4 come after the slot was given back. */
	synchronize_rcu_tasks();
}
