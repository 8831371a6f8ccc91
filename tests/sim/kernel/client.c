// SPDX-License-Identifier: GPL-2.0-only
/* Root clients: each belongs to one open /dev/nvidiactl and dies with it. */
#include <linux/slab.h>

#include "nvsim.h"

#define FIRST_HANDLE 0xc1d00001

static DEFINE_XARRAY_ALLOC(clients);
static atomic_t client_count = ATOMIC_INIT(0);

static void client_free(struct kref *ref)
{
	struct nvsim_client *client = container_of(ref, struct nvsim_client, ref);

	xa_destroy(&client->objects);
	mutex_destroy(&client->lock);
	kfree(client);
	atomic_dec(&client_count);
}

void nvsim_client_put(struct nvsim_client *client)
{
	kref_put(&client->ref, client_free);
}

static struct nvsim_client *client_new(struct nvsim_file *nvfile)
{
	struct nvsim_client *client;

	if (atomic_inc_return(&client_count) > NVSIM_MAX_CLIENTS)
		goto err_count;
	client = kzalloc(sizeof(*client), GFP_KERNEL);
	if (!client)
		goto err_count;
	kref_init(&client->ref);
	mutex_init(&client->lock);
	xa_init(&client->objects);
	client->file = nvfile;
	return client;

err_count:
	atomic_dec(&client_count);
	return NULL;
}

/* Take the handle asked for, or the next free one. */
static int client_publish(struct nvsim_client *client, u32 *handle)
{
	static u32 next;
	int err;

	if (*handle)
		return xa_insert(&clients, *handle, client, GFP_KERNEL);
	err = xa_alloc_cyclic(&clients, handle, client,
			      XA_LIMIT(FIRST_HANDLE, FIRST_HANDLE + 0xffff), &next, GFP_KERNEL);
	return err < 0 ? err : 0;
}

u32 nvsim_client_create(struct nvsim_file *nvfile, u32 *handle)
{
	struct nvsim_client *client = client_new(nvfile);
	int err;

	if (!client)
		return NV_ERR_INSUFFICIENT_RESOURCES;
	client->handle = *handle;
	mutex_lock(&nvfile->lock);
	err = client_publish(client, handle);
	if (!err) {
		client->handle = *handle;
		list_add_tail(&client->list, &nvfile->clients);
	}
	mutex_unlock(&nvfile->lock);
	if (err) {
		nvsim_client_put(client);
		return err == -EBUSY ? NV_ERR_INSERT_DUPLICATE_NAME : NV_ERR_INSUFFICIENT_RESOURCES;
	}
	return NV_OK;
}

/* A client that another open file made is as good as none. */
struct nvsim_client *nvsim_client_find(struct nvsim_file *nvfile, u32 handle)
{
	struct nvsim_client *client;

	xa_lock(&clients);
	client = xa_load(&clients, handle);
	if (client && client->file == nvfile)
		kref_get(&client->ref);
	else
		client = NULL;
	xa_unlock(&clients);
	return client;
}

static void client_destroy(struct nvsim_client *client, bool closing)
{
	mutex_lock(&client->lock);
	client->dead = true;
	nvsim_object_teardown(client, client->handle, closing);
	mutex_unlock(&client->lock);
	nvsim_client_put(client);
}

/* Unlink a client from its file; true for the one caller that did. */
static bool client_unlink(struct nvsim_file *nvfile, struct nvsim_client *client)
{
	bool mine;

	mutex_lock(&nvfile->lock);
	mine = xa_cmpxchg(&clients, client->handle, client, NULL, 0) == client;
	if (mine)
		list_del(&client->list);
	mutex_unlock(&nvfile->lock);
	return mine;
}

u32 nvsim_client_destroy(struct nvsim_file *nvfile, u32 handle)
{
	struct nvsim_client *client = nvsim_client_find(nvfile, handle);
	bool mine;

	if (!client)
		return NV_ERR_INVALID_CLIENT;
	mine = client_unlink(nvfile, client);
	if (mine)
		client_destroy(client, false);
	nvsim_client_put(client);
	return mine ? NV_OK : NV_ERR_INVALID_CLIENT;
}

/* At the last close: nobody else can reach the file. */
void nvsim_client_destroy_all(struct nvsim_file *nvfile)
{
	struct nvsim_client *client, *tmp;

	list_for_each_entry_safe(client, tmp, &nvfile->clients, list) {
		client_unlink(nvfile, client);
		client_destroy(client, true);
	}
}

void nvsim_client_exit(void)
{
	WARN_ON(atomic_read(&client_count));
	xa_destroy(&clients);
}
