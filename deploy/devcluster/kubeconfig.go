package main

import (
	"fmt"
	"path/filepath"

	"k8s.io/client-go/tools/clientcmd"
	clientcmdapi "k8s.io/client-go/tools/clientcmd/api"
)

// writeKubeconfigs writes one file per user. They carry the authority and the
// token inside, so that they may be copied away from dir.
func writeKubeconfigs(dir, server string, c *credentials) error {
	for _, u := range c.Users {
		cfg := clientcmdapi.NewConfig()
		cfg.Clusters["devcluster"] = &clientcmdapi.Cluster{Server: server, CertificateAuthorityData: c.CA}
		cfg.AuthInfos[u.File] = &clientcmdapi.AuthInfo{Token: u.Token}
		cfg.Contexts[u.File] = &clientcmdapi.Context{Cluster: "devcluster", AuthInfo: u.File}
		cfg.CurrentContext = u.File
		if err := clientcmd.WriteToFile(*cfg, filepath.Join(dir, u.File+".kubeconfig")); err != nil {
			return fmt.Errorf("writing the kubeconfig of %s: %w", u.Name, err)
		}
	}
	return nil
}
