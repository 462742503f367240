// SPDX-License-Identifier: GPL-2.0-only
/*
 * Finds the hypervisor's asynchronous page faults, and enables them for each
 * vCPU while they are wanted.
 *
 * They are wanted from the probe to the removal of the device, except
 *
 *  - while the parameter `enabled` is off;
 *  - from the suspend of the device to its resume: suspend to RAM and to disk;
 *  - from the shutdown of the device on: reboot, power-off, kexec.
 *
 * A vCPU enables when it comes online and when they become wanted, and disables
 * when it goes offline and when they are not wanted any more. apf_mutex and the
 * lock of CPU hotplug order these: apf_apply() holds both, and hotplug's
 * callbacks run under the second, as a writer or in the vCPU's own thread. So
 * each online vCPU is enabled exactly while they are wanted.
 */

#define pr_fmt(fmt) KBUILD_MODNAME ": " fmt

#include <linux/cpu.h>
#include <linux/cpuhotplug.h>
#include <linux/interrupt.h>
#include <linux/io.h>
#include <linux/irq.h>
#include <linux/module.h>
#include <linux/mutex.h>
#include <linux/of.h>
#include <linux/percpu.h>
#include <linux/platform_device.h>
#include <linux/pm.h>
#include <linux/slab.h>

#include "apf.h"

static DEFINE_MUTEX(apf_mutex);
static struct apf_cpu __percpu *apf_cpus;
static unsigned int apf_irq;
static int apf_hotplug_state;
/* Under the mutex: the device is there, and neither suspended nor shut down. */
static bool apf_is_up;
/* Under the mutex: the parameter. */
static bool apf_is_on = true;
/* Under the mutex and hotplug's lock. */
static bool apf_is_wanted;

static void apf_enable_here(void)
{
	struct apf_cpu *cpu = this_cpu_ptr(apf_cpus);
	u64 area = virt_to_phys(cpu->area);
	long answer;

	if (cpu->is_enabled)
		return;
	memset(cpu->area, 0, sizeof(*cpu->area)); /* A1 */
	enable_percpu_irq(apf_irq, IRQ_TYPE_EDGE_RISING);
	/* EL0's accesses only. In the kernel no task may be parked. */
	answer = apf_call(TWOFOLD_APF_ENABLE, area, 0);
	if (answer == TWOFOLD_APF_INVALID_PARAMETER) {
		/* A kernel that crashed may have left its own area. */
		apf_call(TWOFOLD_APF_DISABLE, 0, 0);
		answer = apf_call(TWOFOLD_APF_ENABLE, area, 0);
	}
	if (answer != TWOFOLD_APF_SUCCESS) {
		disable_percpu_irq(apf_irq);
		pr_warn("CPU %d goes without: ENABLE returned %ld\n", smp_processor_id(), answer);
		return;
	}
	cpu->is_enabled = true;
}

static void apf_disable_here(void)
{
	struct apf_cpu *cpu = this_cpu_ptr(apf_cpus);
	long answer;

	if (!cpu->is_enabled)
		return;
	answer = apf_call(TWOFOLD_APF_DISABLE, 0, 0);
	if (answer != TWOFOLD_APF_SUCCESS)
		pr_warn("CPU %d: DISABLE returned %ld\n", smp_processor_id(), answer);
	disable_percpu_irq(apf_irq);
	cpu->is_enabled = false;
	apf_wake(cpu, TWOFOLD_APF_WAKE_ALL); /* A7 */
}

static void apf_apply_here(void *unused)
{
	if (apf_is_wanted)
		apf_enable_here();
	else
		apf_disable_here();
}

/* The mutex is held. */
static void apf_apply(void)
{
	cpus_read_lock();
	apf_is_wanted = apf_is_up && apf_is_on;
	on_each_cpu(apf_apply_here, NULL, true);
	cpus_read_unlock();
}

static void apf_set_up(bool is_up)
{
	guard(mutex)(&apf_mutex);
	apf_is_up = is_up;
	apf_apply();
}

static int apf_online(unsigned int cpu)
{
	guard(irqsave)();
	apf_apply_here(NULL);
	return 0;
}

static int apf_offline(unsigned int cpu)
{
	guard(irqsave)();
	apf_disable_here();
	return 0;
}

/* The parameter `enabled`. Before the probe it is only noted. */
static int apf_set_enabled(const char *value, const struct kernel_param *param)
{
	int error;

	guard(mutex)(&apf_mutex);
	error = param_set_bool(value, param);
	if (!error && apf_is_up)
		apf_apply();
	return error;
}

static const struct kernel_param_ops apf_enabled_ops = {
	.flags = KERNEL_PARAM_OPS_FL_NOARG,
	.set = apf_set_enabled,
	.get = param_get_bool,
};
module_param_cb(enabled, &apf_enabled_ops, &apf_is_on, 0644);
MODULE_PARM_DESC(enabled, "park tasks that touch absent pages (default: on)");

/* The sum of a counter over all vCPUs, as a file of the device. */
#define APF_COUNTER(counter)							\
static ssize_t counter##_show(struct device *dev, struct device_attribute *attr,\
			      char *text)					\
{										\
	u64 sum = 0;								\
	int cpu;								\
										\
	for_each_possible_cpu(cpu)						\
		sum += READ_ONCE(per_cpu_ptr(apf_cpus, cpu)->counter);		\
	return sysfs_emit(text, "%llu\n", sum);					\
}										\
static DEVICE_ATTR_RO(counter)

APF_COUNTER(announced);
APF_COUNTER(parked);
APF_COUNTER(declined);
APF_COUNTER(woken);

static struct attribute *apf_attrs[] = {
	&dev_attr_announced.attr,
	&dev_attr_parked.attr,
	&dev_attr_declined.attr,
	&dev_attr_woken.attr,
	NULL,
};
ATTRIBUTE_GROUPS(apf);

/* Whether the hypervisor has a protocol that this module knows. */
static int apf_discover(struct device *dev)
{
	const struct irq_data *irq = irq_get_irq_data(apf_irq);
	long version, intid;

	if (of_property_match_string(dev->of_node, "method", "hvc") < 0)
		return dev_err_probe(dev, -ENODEV, "the method is not hvc\n");
	version = apf_call(TWOFOLD_APF_QUERY, TWOFOLD_APF_QUERY_VERSION, 0);
	if (version < 0)
		return dev_err_probe(dev, -ENODEV, "QUERY returned %ld\n", version);
	if (version >> 16 != TWOFOLD_APF_VERSION >> 16)
		return dev_err_probe(dev, -ENODEV, "version %#lx is not %#x\n", version,
				     TWOFOLD_APF_VERSION);
	intid = apf_call(TWOFOLD_APF_QUERY, TWOFOLD_APF_QUERY_INTID, 0);
	if (!irq || irqd_to_hwirq((struct irq_data *)irq) != intid)
		return dev_err_probe(dev, -ENODEV, "the interrupt is not INTID %ld\n", intid);
	return 0;
}

static void apf_free(void)
{
	int cpu;

	for_each_possible_cpu(cpu)
		kfree(per_cpu_ptr(apf_cpus, cpu)->area);
	free_percpu(apf_cpus);
}

static int apf_allocate(void)
{
	struct twofold_apf_area *area;
	int cpu;

	apf_cpus = alloc_percpu(struct apf_cpu);
	if (!apf_cpus)
		return -ENOMEM;
	for_each_possible_cpu(cpu) {
		/* A power of two, so kmalloc aligns it to its size. */
		area = kzalloc_node(sizeof(*area), GFP_KERNEL, cpu_to_node(cpu));
		if (!area) {
			apf_free();
			return -ENOMEM;
		}
		apf_init_cpu(per_cpu_ptr(apf_cpus, cpu), area);
	}
	return 0;
}

static int apf_probe(struct platform_device *pdev)
{
	int irq = platform_get_irq(pdev, 0);
	int error;

	if (irq < 0)
		return irq;
	apf_irq = irq;
	error = apf_discover(&pdev->dev);
	if (error)
		return error;
	error = apf_allocate();
	if (error)
		return error;
	error = request_percpu_irq(apf_irq, apf_interrupt, "twofold-apf", apf_cpus);
	if (error)
		goto free;
	error = cpuhp_setup_state(CPUHP_AP_ONLINE_DYN, "twofold-apf:online", apf_online,
				  apf_offline);
	if (error < 0)
		goto free_irq;
	apf_hotplug_state = error;
	apf_set_up(true);
	return 0;

free_irq:
	free_percpu_irq(apf_irq, apf_cpus);
free:
	apf_free();
	return error;
}

static void apf_remove(struct platform_device *pdev)
{
	apf_set_up(false);
	cpuhp_remove_state(apf_hotplug_state);
	free_percpu_irq(apf_irq, apf_cpus);
	apf_wait_for_tasks();
	apf_free();
}

static void apf_shutdown(struct platform_device *pdev)
{
	apf_set_up(false);
}

static int apf_suspend(struct device *dev)
{
	apf_set_up(false);
	return 0;
}

static int apf_resume(struct device *dev)
{
	apf_set_up(true);
	return 0;
}

/* In this phase tasks are frozen, and all vCPUs are still online. */
static const struct dev_pm_ops apf_pm = {
	NOIRQ_SYSTEM_SLEEP_PM_OPS(apf_suspend, apf_resume)
};

static const struct of_device_id apf_of_match[] = {
	{ .compatible = TWOFOLD_APF_COMPATIBLE },
	{ }
};
MODULE_DEVICE_TABLE(of, apf_of_match);

static struct platform_driver apf_driver = {
	.remove = apf_remove,
	.shutdown = apf_shutdown,
	.driver = {
		.name = "twofold-apf",
		.of_match_table = apf_of_match,
		.pm = pm_sleep_ptr(&apf_pm),
		.dev_groups = apf_groups,
	},
};
/* The hypervisor does not come later. */
module_platform_driver_probe(apf_driver, apf_probe);

MODULE_DESCRIPTION("Asynchronous page faults of the hypervisor Twofold");
MODULE_LICENSE("GPL");
